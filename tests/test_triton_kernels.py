"""The kernels in Triton, run by its interpreter: on every odd size they are the dense matrix, in both layouts.

`make triton` runs these, in an environment of its own; elsewhere they are left out.
"""

from itertools import product

import pytest
import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.torch.kernels import triton_product
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.fractional.torch.rehearsal import rehearse
from hpfracc_nn.selection import kernels
from hpfracc_nn.training.torch.optimizers.kernels import triton_mix
from tests.cuda_cases import manager_for
from tests.test_cuda_half import HALVES, every_half
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
from tests.triton_cases import Interpreted, interpreted, needs_interpreter  # noqa: F401  a fixture

(KERNEL,) = (kernel for kernel in KERNELS if kernel.backend == "triton")
TRITON = Forced(KERNEL, "cpu")
DENSE, FFT = (
    Forced(next(each for each in KERNELS if each.name == name), "cpu") for name in ("torch/dense", "torch/fft")
)
MANY = 64  # processors of a device on which signals are cut into segments
LAYOUTS = ("last", "middle")
pytestmark = [needs_interpreter, pytest.mark.usefixtures("poison", "interpreted")]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_operator = pytest.mark.parametrize("definition", OPERATORS, ids=repr)
# No, one and two differences, a slope, one and three columns, sums before the product: the interpreter is slow.
SOME = [Caputo(0.1), Caputo(0.5), RiemannLiouville(1.7, scheme="l1_2"), RiemannLiouvilleIntegral(1.6)]
every_kind = pytest.mark.parametrize("definition", SOME, ids=repr)
every_number = pytest.mark.parametrize("processors", [1, MANY])


def shape_for(layout: str, rows: int, n: int) -> tuple[tuple[int, ...], int]:
    """Return a shape of so many signals in a layout, and its time axis."""
    return ((2, n, rows), 1) if layout == "middle" else ((rows, n), -1)


@pytest.mark.slow
@every_layout
@every_scheme
def test_the_scan_is_the_dense_matrix_at_every_size(layout: str, kind: type[Definition], scheme: str) -> None:
    tally = Tally()
    for (i, n), (j, alpha) in product(enumerate((*SIZES, 15, 16, 17, 129)), enumerate(alphas_of(kind))):
        if (i + j) % 27:  # every size and every order, but not every pair
            continue
        with tally.each():
            assert_is_the_matrix(TRITON, kind(alpha, scheme), *shape_for(layout, 3, n))
    tally.check()


@pytest.mark.slow
@every_layout
@every_operator
def test_every_operator_is_its_matrix_over_many_chunks(layout: str, definition: Definition) -> None:
    for n in (1, 2, 3, 200):
        assert_is_the_matrix(TRITON, definition, *shape_for(layout, 3, n))


@pytest.mark.slow
@every_layout
@every_operator
def test_segments_change_nothing(interpreted: Interpreted, layout: str, definition: Definition) -> None:  # noqa: F811
    interpreted.processors, n = MANY, 533
    shape, dim = shape_for(layout, 3, n)
    assert triton_product.segment_of((shape[0], 1, n, 3 if layout == "middle" else 1), "cpu") < -(-n // 16)
    assert_is_the_matrix(TRITON, definition, shape, dim)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_layout
def test_few_long_signals_are_cut_and_right(
    interpreted: Interpreted,  # noqa: F811
    layout: str,
    dtype: torch.dtype,
) -> None:
    """As on a device with many processors: both ways, against the FFT in double precision."""
    interpreted.processors, n = 132, 4099
    shape, dim = ((1, n, 2), 1) if layout == "middle" else ((2, n), -1)
    x, g = TRITON.random(*shape), TRITON.random(*shape, seed=1)
    bound = {torch.float32: 2e-6, torch.float64: 1e-11}[dtype]
    for definition in (Caputo(0.5), Caputo(1.7)):
        found = TRITON(x.to(dtype), definition, dim=dim), backward_of(TRITON, x.to(dtype), g.to(dtype), definition, dim)
        wanted = FFT(x, definition, dim=dim), backward_of(FFT, x, g, definition, dim)
        for one, other in zip(found, wanted, strict=True):
            assert (one.double() - other).norm() <= bound * other.norm()


@pytest.mark.slow
@every_number
@pytest.mark.parametrize(("alpha", "shape", "dim"), CHANNELS)
def test_every_channel_has_its_own_weights(
    interpreted: Interpreted,  # noqa: F811
    processors: int,
    alpha: tuple,
    shape: tuple[int, ...],
    dim: int,
) -> None:
    interpreted.processors = processors
    shape = tuple(600 if size in (70, 131) and processors > 1 else size for size in shape)
    x, g = TRITON.random(*shape), TRITON.random(*shape, seed=1)
    for definition in (Caputo(alpha, bounds=(0, 1)), RiemannLiouvilleIntegral(alpha, bounds=(0, 1))):
        pairs = [
            [each(x, definition, dim=dim) for each in (TRITON, DENSE)],
            [backward_of(each, x, g, definition, dim) for each in (TRITON, DENSE)],
        ]
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@every_layout
@pytest.mark.parametrize("rows", [1, 33, 100])
def test_programs_that_are_not_full_are_right(layout: str, rows: int) -> None:
    for definition in (Caputo(0.5), RiemannLiouville(1.7, scheme="l1_2")):
        for n in (5, 40):
            assert_is_the_matrix(TRITON, definition, *shape_for(layout, rows, n))


@pytest.mark.slow
@every_layout
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.1, 1.5, 1.9])
def test_single_precision_keeps_its_bound(layout: str, alpha: float) -> None:
    n = 1000
    shape, dim = shape_for(layout, 2, n)
    ramp = torch.linspace(0, 1, n, dtype=torch.float64).view([n if size == n else 1 for size in shape])
    for x in (TRITON.random(*shape).float(), ramp.square().expand(shape).float()):
        wanted = FFT(x.double(), Caputo(alpha), dim=dim)
        found = TRITON(x, Caputo(alpha), dim=dim).double()
        assert (found - wanted).norm() <= 5e-7 * wanted.norm()  # the bound of every kernel, see docs/design.md


@pytest.mark.slow
@every_layout
def test_what_is_not_finite_stays_in_its_row(layout: str) -> None:
    shape, dim = shape_for(layout, 5, 131)
    x = TRITON.random(*shape)
    broken = x.clone()
    broken.movedim(dim, -1).reshape(-1, 131)[1, 17] = torch.nan  # a copy where time is in the middle
    broken.movedim(dim, -1)[(0, 1, 17) if layout == "middle" else (1, 17)] = torch.nan
    y, z = (TRITON(each, Caputo(0.5), dim=dim).movedim(dim, -1).reshape(-1, 131) for each in (x, broken))
    assert torch.equal(y[[0, *range(2, len(y))]], z[[0, *range(2, len(z))]])


def both_ways(x: Tensor, g: Tensor, definition: Definition, dim: int) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = apply("test", x, definition, 0.1, dim, manager_for(KERNEL))
    return [y.detach(), *torch.autograd.grad(y, x, g.to(x.dtype))]


@pytest.mark.slow
@every_layout
@every_kind
@every_half
@every_number
def test_half_precision_is_single_precision_rounded_once(
    interpreted: Interpreted,  # noqa: F811
    layout: str,
    definition: Definition,
    dtype: torch.dtype,
    processors: int,
) -> None:
    interpreted.processors = processors
    for n in (2, 17, 100) if processors == 1 else (533,):
        shape, dim = shape_for(layout, 3, n)
        x, g = (TRITON.random(*shape, seed=seed).to(dtype) for seed in (n, n + 1))
        for found, single in zip(*(both_ways(each, g, definition, dim) for each in (x, x.float())), strict=True):
            assert found.dtype == dtype
            is_torchs = definition.differences < 0  # which takes sums, and rounds
            assert torch.equal(found, single.to(dtype) if is_torchs else rounded(single, dtype))


def rounded(single: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what the interpreter writes: bfloat16 without the bits that it lacks.

    What is compiled rounds to the nearest; test_triton_code.py looks for that.
    """
    if dtype == torch.bfloat16:
        single = (single.view(torch.int32) & -(2**16)).view(torch.float32)
    return single.to(dtype)


@pytest.mark.slow
@every_layout
@every_number
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES.values()], ids=str)
def test_the_gradient_in_the_order_is_the_formulas(
    interpreted: Interpreted,  # noqa: F811
    layout: str,
    processors: int,
    dtype: torch.dtype,
) -> None:
    interpreted.processors = processors
    for definition in (Caputo(0.5), RiemannLiouville(1.7, scheme="l1_2"), RiemannLiouvilleIntegral(0.4)):
        shape, dim = shape_for(layout, 3, 520)
        bounds, alpha = learned_like(definition, "cpu")
        x, g = (TRITON.random(*shape, seed=seed).to(dtype) for seed in (0, 1))
        learned = type(definition)(alpha, definition.scheme, bounds)
        found, wanted = (
            torch.autograd.grad(apply("test", each, learned, 0.1, dim, manager), alpha, g.to(each.dtype))[0]
            for each, manager in ((x, manager_for(KERNEL)), (x.double(), manager_for(DENSE.kernel)))
        )
        # Terms cancel: against the gradient under weights of one sign it is the bound of a kernel in single precision.
        scale = torch.autograd.grad(
            apply("test", x.double(), learned, 0.1, dim, manager_for(DENSE.kernel)).abs().sum(), alpha
        )[0]
        bound = 1e-11 if dtype == torch.float64 else 5e-6
        assert abs(found - wanted) <= bound * max(abs(wanted), abs(scale))


@pytest.mark.slow
@every_number
@pytest.mark.parametrize(("alpha", "shape", "dim"), CHANNELS)
def test_every_channel_has_the_gradient_of_its_own_order(
    interpreted: Interpreted,  # noqa: F811
    processors: int,
    alpha: tuple,
    shape: tuple[int, ...],
    dim: int,
) -> None:
    interpreted.processors = processors
    shape = tuple(600 if size in (70, 131) and processors > 1 else size for size in shape)
    orders = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    x = TRITON.random(*shape)
    found, wanted = (
        torch.autograd.grad(forced(x, Caputo(orders, bounds=(0, 1)), dim=dim).sin().sum(), orders)[0]
        for forced in (TRITON, DENSE)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@every_layout
@every_operator
def test_gradients_in_a_learned_order_are_those_of_the_formula(layout: str, definition: Definition) -> None:
    shape, dim = shape_for(layout, 3, 70)
    bounds, alpha = learned_like(definition, "cpu")
    x, learned = TRITON.random(*shape).requires_grad_(), type(definition)(alpha, definition.scheme, bounds)
    found, wanted = (torch.autograd.grad(each(x, learned, dim=dim).sin().sum(), (x, alpha)) for each in (TRITON, DENSE))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
@every_layout
@pytest.mark.parametrize("n", [10, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("definition", [Caputo(0.5), Caputo(1.5), RiemannLiouvilleIntegral(0.6)], ids=repr)
def test_a_rehearsal_compiles_what_a_call_needs(
    interpreted: Interpreted,  # noqa: F811
    layout: str,
    n: int,
    dtype: torch.dtype,
    definition: Definition,
) -> None:
    """The code that a call announces is what it runs, with the constants that a rehearsal runs too."""
    shape, dim = shape_for(layout, 3, n)
    manager = manager_for(KERNEL)
    bounds, alpha = learned_like(definition, "cpu")
    x = TRITON.random(*shape).to(dtype).requires_grad_()
    apply("test", x, type(definition)(alpha, bounds=bounds), 0.5, dim, manager).sum().backward()
    needed, ran = set(interpreted.launches), set(interpreted.ran)
    interpreted.launches.clear()
    (asked,) = {plan.workload for site in manager.sites() for plan in site.plans()}
    rehearse(manager.plan(asked))
    assert needed <= set(interpreted.launches)
    assert ran <= interpreted.asked


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_average_of_many_parameters_is_the_operation(name: str, dtype: torch.dtype) -> None:
    mix, generator = MIXES[name], torch.Generator().manual_seed(0)
    sizes = (1, 0, 63, 64, 1025, 3000, *range(1, 30))
    grads = [torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]
    rows = [torch.randn(len(mix.weights), size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]
    answers = [expected(grad, held, mix) for grad, held in zip(grads, rows, strict=True)]
    averages = [torch.full_like(grad, torch.nan) for grad in grads]
    triton_mix.run(grads, rows, averages, mix)
    eps = torch.finfo(dtype).eps
    for average, held, (average_there, held_there) in zip(averages, rows, answers, strict=True):
        torch.testing.assert_close(average.double(), average_there, rtol=eps, atol=10 * eps)
        torch.testing.assert_close(held.double(), held_there, rtol=2 * eps, atol=10 * eps)


def test_a_row_that_weighs_nothing_is_not_read() -> None:
    mix = next(each for each in MIXES.values() if 0 in each.weights)
    grads, averages = [torch.ones(70)], [torch.empty(70)]
    rows = [torch.ones(len(mix.weights), 70)]
    rows[0][[weight == 0 for weight in mix.weights]] = torch.nan
    triton_mix.run(grads, rows, averages, mix)
    assert averages[0].isfinite().all()


def test_they_are_backends_as_the_others_are() -> None:
    for op in ("toeplitz", "history_mix"):
        assert [kernel.backend for kernel in kernels(op, "torch")].count("triton") == 1
