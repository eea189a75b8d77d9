"""The bodies of the CUDA kernels, compiled as C++: on every odd size they are the dense matrix, whatever the order of
their threads, and with poisoned memory. No device is needed; see cuda_cases.py.
"""

from collections.abc import Callable
from itertools import product

import pytest
import torch

from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.torch.kernels import cuda_product
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.fractional.torch.rehearsal import rehearse
from hpfracc_nn.selection import Kernel, kernels
from hpfracc_nn.solvers import Exponentials, Full, fdeint
from hpfracc_nn.training.torch.optimizers.kernels import cuda_mix
from tests.cuda_cases import CUT, Emulated, emulated, manager_for, needs_compiler  # noqa: F401  a fixture
from tests.test_optimizer_mix import MIXES, expected
from tests.test_torch_kernels import (
    CHANNELS,
    OPERATORS,
    SIZES,
    assert_is_the_matrix,
    backward_of,
    learned_like,
    poison,  # noqa: F401  a fixture
)
from tests.torch_cases import KERNELS, Forced, Tally, alphas_of, every_scheme

CUDA = {
    kernel.algorithm: Forced(kernel, "cpu") for kernel in KERNELS if kernel.backend == "cuda" and not kernel.offloads
}
MANY = 64  # processors of a device on which signals are cut into segments
pytestmark = [needs_compiler, pytest.mark.usefixtures("poison", "emulated")]
every_algorithm = pytest.mark.parametrize("algorithm", sorted(CUDA))
every_operator = pytest.mark.parametrize("definition", OPERATORS, ids=repr)


def shape_for(algorithm: str, rows: int, n: int) -> tuple[tuple[int, ...], int]:
    """Return a shape of so many signals that an algorithm takes, and its time axis."""
    return ((2, n, rows), 1) if algorithm == "recurrence" else ((rows, n), -1)


@pytest.mark.parametrize("n", [1, 2, 15, 17, 131])
def test_the_scan_is_the_dense_matrix(n: int) -> None:
    for definition in (Caputo(0.5), RiemannLiouville(1.7, scheme="l1_2")):
        assert_is_the_matrix(CUDA["chunked_scan"], definition, (3, n), -1)


@pytest.mark.slow
@every_algorithm
@every_scheme
def test_every_kernel_is_the_dense_matrix_at_every_size(algorithm: str, kind: type[Definition], scheme: str) -> None:
    tally = Tally()
    for (i, n), (j, alpha) in product(enumerate((*SIZES, 15, 16, 17, 129)), enumerate(alphas_of(kind))):
        if (i + j) % 3:  # every size and every order, but not every pair
            continue
        with tally.each():
            assert_is_the_matrix(CUDA[algorithm], kind(alpha, scheme), *shape_for(algorithm, 3, n))
    tally.check()


@pytest.mark.slow
@every_operator
@pytest.mark.parametrize("algorithm", ["chunked_scan", "recurrence"])
@pytest.mark.parametrize("n", [1000, 2100])
def test_segments_change_nothing(emulated: Emulated, algorithm: str, n: int, definition: Definition) -> None:  # noqa: F811
    emulated.processors = MANY
    assert_is_the_matrix(CUDA[algorithm], definition, *shape_for(algorithm, 3, n))
    is_split = algorithm == "recurrence" or n > 2000
    assert ("chain" in emulated.launches) == is_split


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rows", "n"), CUT)
@pytest.mark.parametrize("algorithm", ["chunked_scan", "recurrence"])
def test_few_long_signals_are_cut_and_right(
    emulated: Emulated,  # noqa: F811
    algorithm: str,
    rows: int,
    n: int,
    dtype: torch.dtype,
) -> None:
    """As on a device with many processors: both ways, against the FFT in double precision."""
    emulated.processors = 132
    shape, dim = ((1, n, rows + 1), 1) if algorithm == "recurrence" else ((rows, n), -1)
    forced, exact = CUDA[algorithm], Forced(next(each for each in KERNELS if each.name == "torch/fft"), "cpu")
    x, g = forced.random(*shape), forced.random(*shape, seed=1)
    bound = {torch.float32: 2e-6, torch.float64: 1e-11}[dtype]
    for definition in (Caputo(0.5), Caputo(1.7)):
        emulated.launches.clear()
        found = forced(x.to(dtype), definition, dim=dim), backward_of(forced, x.to(dtype), g.to(dtype), definition, dim)
        wanted = exact(x, definition, dim=dim), backward_of(exact, x, g, definition, dim)
        assert {"forward_ends", "backward_ends", "chain", "finish"} <= set(emulated.launches)
        for one, other in zip(found, wanted, strict=True):
            assert (one.double() - other).norm() <= bound * other.norm()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["chunked_scan", "dense"])
@pytest.mark.parametrize(("alpha", "shape", "dim"), CHANNELS)
def test_every_channel_has_its_own_weights(algorithm: str, alpha: tuple, shape: tuple[int, ...], dim: int) -> None:
    forced = CUDA[algorithm]
    x, g = forced.random(*shape), forced.random(*shape, seed=1)
    there = Forced(next(kernel for kernel in KERNELS if kernel.name == "torch/dense"), "cpu")
    for definition in (Caputo(alpha, bounds=(0, 1)), RiemannLiouvilleIntegral(alpha, bounds=(0, 1))):
        torch.testing.assert_close(forced(x, definition, dim=dim), there(x, definition, dim=dim), rtol=0, atol=1e-11)
        grads = [backward_of(each, x, g, definition, dim) for each in (forced, there)]
        torch.testing.assert_close(*grads, rtol=0, atol=1e-11)


@pytest.mark.slow
@every_algorithm
@every_operator
@pytest.mark.parametrize("rows", [1, 33, 300])
def test_blocks_that_are_not_full_are_right(algorithm: str, rows: int, definition: Definition) -> None:
    for n in (5, 40):
        assert_is_the_matrix(CUDA[algorithm], definition, *shape_for(algorithm, rows, n))


@pytest.mark.slow
@every_algorithm
@every_operator
def test_gradients_in_a_learned_order_are_those_of_the_formula(algorithm: str, definition: Definition) -> None:
    forced = CUDA[algorithm]
    shape, dim = shape_for(algorithm, 3, 70)
    bounds, alpha = learned_like(definition, "cpu")
    x, learned = forced.random(*shape).requires_grad_(), type(definition)(alpha, definition.scheme, bounds)
    there = Forced(next(kernel for kernel in KERNELS if kernel.name == "torch/dense"), "cpu")
    found, wanted = (torch.autograd.grad(each(x, learned, dim=dim).sin().sum(), (x, alpha)) for each in (forced, there))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("processors", [1, MANY])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.1, 1.5, 1.9])
def test_single_precision_keeps_its_bound(
    emulated: Emulated,  # noqa: F811
    algorithm: str,
    processors: int,
    alpha: float,
) -> None:
    emulated.processors = processors
    n = 500 if algorithm == "dense" else 5000
    shape, dim = shape_for(algorithm, 2, n)
    exact = Forced(next(kernel for kernel in KERNELS if kernel.name == "torch/fft"), "cpu")
    ramp = torch.linspace(0, 1, n, dtype=torch.float64).view([n if size == n else 1 for size in shape])
    for x in (CUDA[algorithm].random(*shape).float(), ramp.square().expand(shape).float()):
        wanted = exact(x.double(), Caputo(alpha), dim=dim)
        found = CUDA[algorithm](x, Caputo(alpha), dim=dim).double()
        assert (found - wanted).norm() <= 5e-7 * wanted.norm()  # the bound of every kernel, see docs/design.md


@pytest.mark.slow
@every_algorithm
def test_what_is_not_finite_stays_in_its_row(algorithm: str) -> None:
    forced = CUDA[algorithm]
    shape, dim = shape_for(algorithm, 5, 131)
    x = forced.random(*shape)
    rows = x.movedim(dim, -1).reshape(-1, 131)
    broken = rows.clone()
    broken[1, 17] = torch.nan
    y, z = (
        forced(each.view(*rows.shape) if dim == -1 else each.view(2, 5, 131).movedim(-1, 1), Caputo(0.5), dim=dim)
        for each in (rows, broken)
    )
    same = (y == z).movedim(dim, -1).reshape(-1, 131)
    assert same[[0, 2, 3, 4]].all()


def test_the_structure_is_the_sources() -> None:
    """Eleven addresses, eight counts of eight bytes, eight of four: what a compiler makes of `Problem`."""
    assert cuda_product.PROBLEM.itemsize == 11 * 8 + 8 * 8 + 8 * 4
    assert cuda_product.PROBLEM.isalignedstruct


def test_a_long_signal_is_cut_only_where_signals_are_few(emulated: Emulated) -> None:  # noqa: F811
    emulated.processors = MANY
    few, many = (cuda_product.chunked_cut((rows, 1, 65536, 1), 32, 4, torch.device("cpu")) for rows in (16, 4096))
    assert few.segments > 1
    assert few.segment * few.segments >= 65536 // 16 > few.segment * (few.segments - 1)
    assert few.blocks * few.segments <= 2 * cuda_product.SPLIT_INTO * MANY
    assert many.segments == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_average_of_many_parameters_is_the_operation(name: str, dtype: torch.dtype) -> None:
    mix, generator = MIXES[name], torch.Generator().manual_seed(0)
    sizes = (1, 0, 63, 64, 1025, 3000, *range(1, 30))  # more than one launch takes
    grads = [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]
    rows = [torch.randn(len(mix.weights), size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]
    answers = [expected(grad, held, mix) for grad, held in zip(grads, rows, strict=True)]
    averages = [torch.full_like(grad, torch.nan) for grad in grads]
    cuda_mix.run(grads, rows, averages, mix)
    eps = torch.finfo(dtype).eps
    for average, held, (average_there, held_there) in zip(averages, rows, answers, strict=True):
        torch.testing.assert_close(average.double(), average_there, rtol=eps, atol=10 * eps)
        torch.testing.assert_close(held.double(), held_there, rtol=2 * eps, atol=10 * eps)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3, 300])
@pytest.mark.parametrize("alpha", [0.4, 0.8, (0.4, 0.8, 0.9)], ids=str)
def test_a_solvers_history_adds_up_the_same_past(width: int, alpha: float | tuple) -> None:
    kernel = kernel_of("history.exponentials")
    if isinstance(alpha, tuple) and width != 3:
        pytest.skip("an order for each number")
    y0 = torch.linspace(0.2, 1, width, dtype=torch.float64).requires_grad_()
    ts, order = (
        torch.linspace(0, 3, 301, dtype=torch.float64),
        alpha if isinstance(alpha, float) else torch.tensor(alpha),
    )
    runs: list[Callable] = [
        lambda: fdeint(
            lambda t, y: torch.cos(t) - y, y0, ts, order, history=Exponentials(), manager=manager_for(kernel)
        ),
        lambda: fdeint(lambda t, y: torch.cos(t) - y, y0, ts, order, history=Full()),
    ]
    found, wanted = (run() for run in runs)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(
        *(torch.autograd.grad(ys.square().sum(), y0)[0] for ys in (found, wanted)), rtol=1e-10, atol=1e-10
    )
    assert kernel.calls["run"]


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("n", [10, 40, 300])
def test_a_rehearsal_compiles_what_a_call_needs(emulated: Emulated, algorithm: str, n: int) -> None:  # noqa: F811
    forced = CUDA[algorithm]
    shape, dim = shape_for(algorithm, 3, n)
    manager = manager_for(forced.kernel)
    x = forced.random(*shape).requires_grad_()
    apply("test", x, Caputo(0.5), 0.5, dim, manager).sum().backward()
    needed, launched = set(emulated.sources), set(emulated.launches)
    emulated.sources.clear()
    emulated.launches.clear()
    (asked,) = {plan.workload for site in manager.sites() for plan in site.plans()}
    rehearse(manager.plan(asked))
    assert emulated.sources == needed
    assert needed == set(emulated.asked)
    assert set(emulated.launches) == launched  # a device may load each function only when it is first launched


def kernel_of(op: str) -> Kernel:
    return next(each for each in kernels(op, "torch") if each.backend == "cuda")


def test_a_write_beyond_shared_memory_would_be_seen(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    real = cuda_product._chunked_shared
    monkeypatch.setattr(cuda_product, "_chunked_shared", lambda *given: real(*given) - 64)
    scan = cuda_product.Scan(cuda_product.chunked_source, cuda_product.chunked_cut, 1)
    assert scan.cut((3, 1, 40, 1), 8, 8, torch.device("cpu")).shared == real(64, 4, 8, 8) - 64
    with pytest.raises(AssertionError, match="beyond its end"):
        CUDA["chunked_scan"](torch.ones(64, 1024, dtype=torch.float64), Caputo(0.5))
