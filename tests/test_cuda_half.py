"""Half precision that the CUDA kernels read and write themselves, and the gradient in the order that writes nothing.

The kernels' bodies run as C++; see cuda_cases.py.
"""

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from hpfracc_nn import workload
from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import C_TYPES, STORED
from hpfracc_nn.fractional.torch.linear_map import _is_finite
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.fractional.torch.rehearsal import rehearse
from hpfracc_nn.fractional.torch.tiles import multiplied
from hpfracc_nn.selection import BackendManager, Settings, Workload, register, unregister
from tests.cuda_cases import Emulated, emulated, manager_for, needs_compiler  # noqa: F401  a fixture
from tests.test_cuda_kernels import CUDA, MANY, every_algorithm, every_operator, shape_for
from tests.test_torch_kernels import CHANNELS, learned_like, poison  # noqa: F401  a fixture
from tests.torch_cases import KERNELS, Forced

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
DENSE = Forced(next(kernel for kernel in KERNELS if kernel.name == "torch/dense"), "cpu")
every_half = pytest.mark.parametrize("dtype", HALVES.values(), ids=list(HALVES))
pytestmark = [needs_compiler, pytest.mark.usefixtures("poison", "emulated")]


def both_ways(algorithm: str, x: Tensor, g: Tensor, definition: Definition, dim: int) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = apply("test", x, definition, 0.1, dim, manager_for(CUDA[algorithm].kernel))
    return [y.detach(), *torch.autograd.grad(y, x, g.to(x.dtype))]


def assert_is_rounded_once(algorithm: str, definition: Definition, n: int, dtype: torch.dtype) -> None:
    shape, dim = shape_for(algorithm, 3, n)
    x, g = (CUDA[algorithm].random(*shape, seed=seed).to(dtype) for seed in (n, n + 1))
    for found, single in zip(*(both_ways(algorithm, each, g, definition, dim) for each in (x, x.float())), strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, single.to(dtype))


def test_the_scan_reads_half_precision(emulated: Emulated) -> None:  # noqa: F811
    assert_is_rounded_once("chunked_scan", Caputo(0.5), 131, torch.bfloat16)
    assert {source.dtype for source in emulated.sources} == {"bfloat16", "float32"}


@pytest.mark.slow
@every_algorithm
@every_operator
@every_half
@pytest.mark.parametrize("n", [1, 2, 17, 40, 300])
def test_half_precision_is_single_precision_rounded_once(
    emulated: Emulated,  # noqa: F811
    algorithm: str,
    definition: Definition,
    dtype: torch.dtype,
    n: int,
) -> None:
    assert_is_rounded_once(algorithm, definition, n, dtype)
    read = {source.dtype for source in emulated.sources}
    assert read == {"float32", *([] if definition.differences < 0 else [str(dtype).removeprefix("torch.")])}


@pytest.mark.slow
@every_operator
@every_half
@pytest.mark.parametrize("algorithm", ["chunked_scan", "recurrence"])
def test_nothing_is_rounded_where_segments_meet(
    emulated: Emulated,  # noqa: F811
    algorithm: str,
    definition: Definition,
    dtype: torch.dtype,
) -> None:
    emulated.processors = MANY
    assert_is_rounded_once(algorithm, definition, 4200 if algorithm == "chunked_scan" else 300, dtype)
    assert "chain" in emulated.launches


@pytest.mark.slow
@every_half
def test_every_number_of_half_precision_is_read_and_written_as_torch_does(dtype: torch.dtype) -> None:
    """The integral of order 0 is the identity, on all 65536 numbers: each in its row."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).view(-1, 1)
    dense = manager_for(CUDA["dense"].kernel)
    y = apply("test", x, RiemannLiouvilleIntegral(0.0), 1.0, -1, dense)
    assert torch.equal(y[x.isfinite()], x[x.isfinite()])
    assert y[~x.isfinite()].isnan().all()  # infinity times a weight of 0
    # The integral of order 1 in steps of 1.0005, 3 and 1e-3: between two numbers, beyond the largest, below the least.
    for dt in (1.00048828125, 3.0, 1e-3):
        given = x[x.isfinite()].view(-1, 1).expand(-1, 2).contiguous()
        found = apply("test", given, RiemannLiouvilleIntegral(1.0), dt, -1, dense)
        single = apply("test", given.float(), RiemannLiouvilleIntegral(1.0), dt, -1, dense)
        torch.testing.assert_close(found, single.to(dtype), rtol=0, atol=0, equal_nan=True)
        assert found[:, 1].isfinite().float().mean() > 0.9
        assert dt < 1 or dtype == torch.bfloat16 or found.isinf().any()


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("processors", [1, MANY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES.values()], ids=str)
def test_the_gradient_in_the_order_is_the_formulas(
    emulated: Emulated,  # noqa: F811
    algorithm: str,
    processors: int,
    dtype: torch.dtype,
) -> None:
    emulated.processors = processors
    for definition in (Caputo(0.5), RiemannLiouville(1.7, scheme="l1_2"), RiemannLiouvilleIntegral(0.4)):
        shape, dim = shape_for(algorithm, 5, 300 if algorithm == "dense" else 4200)
        bounds, alpha = learned_like(definition, "cpu")
        x, g = (CUDA[algorithm].random(*shape, seed=seed).to(dtype) for seed in (0, 1))
        learned = type(definition)(alpha, definition.scheme, bounds)
        emulated.launches.clear()
        found, wanted = (
            torch.autograd.grad(apply("test", each, learned, 0.1, dim, manager), alpha, g.to(each.dtype))[0]
            for each, manager in ((x, manager_for(CUDA[algorithm].kernel)), (x.double(), manager_for(DENSE.kernel)))
        )
        # Terms cancel: against the gradient under weights of one sign it is the bound of a kernel in single precision.
        scale = torch.autograd.grad(
            apply("test", x.double(), learned, 0.1, dim, manager_for(DENSE.kernel)).abs().sum(), alpha
        )[0]
        bound = 1e-11 if dtype == torch.float64 else 5e-6
        assert abs(found - wanted) <= bound * max(abs(wanted), abs(scale))
        assert emulated.launches.count("inner") == 1
        assert "forward" in emulated.launches


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["chunked_scan", "dense"])
@pytest.mark.parametrize(("alpha", "shape", "dim"), CHANNELS)
def test_every_channel_has_the_gradient_of_its_own_order(
    emulated: Emulated,  # noqa: F811
    algorithm: str,
    alpha: tuple,
    shape: tuple[int, ...],
    dim: int,
) -> None:
    orders = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    x = CUDA[algorithm].random(*shape)
    found, wanted = (
        torch.autograd.grad(forced(x, Caputo(orders, bounds=(0, 1)), dim=dim).sin().sum(), orders)[0]
        for forced in (CUDA[algorithm], DENSE)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)
    assert "inner" in emulated.launches


@pytest.mark.slow
@every_algorithm
@every_half
@pytest.mark.parametrize("definition", [Caputo(0.5), RiemannLiouvilleIntegral(1.6)], ids=repr)
def test_a_rehearsal_compiles_what_half_precision_and_a_learned_order_need(
    emulated: Emulated,  # noqa: F811
    algorithm: str,
    dtype: torch.dtype,
    definition: Definition,
) -> None:
    shape, dim = shape_for(algorithm, 3, 40)
    manager = manager_for(CUDA[algorithm].kernel)
    bounds, alpha = learned_like(definition, "cpu")
    x = CUDA[algorithm].random(*shape).to(dtype).requires_grad_()
    apply("test", x, type(definition)(alpha, bounds=bounds), 0.5, dim, manager).sum().backward()
    needed, launched = set(emulated.sources), set(emulated.launches)
    emulated.sources.clear()
    emulated.launches.clear()
    (asked,) = {plan.workload for site in manager.sites() for plan in site.plans()}
    rehearse(manager.plan(asked))
    assert emulated.sources == needed == set(emulated.asked)
    assert set(emulated.launches) >= launched  # sums before the product leave `inner` out


def test_types_of_half_precision_are_those_of_the_sources() -> None:
    text = cuda_launch.Source(cuda_launch.__package__, "cuda_dense.cu", "float16").text
    assert {*STORED.values()} <= {*re.findall(r"^struct (\w+)", text, re.MULTILINE)}
    assert not {*STORED} & {*C_TYPES}


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_goes_as_it_lies_only_where_float32_computes_it(dtype: str) -> None:
    asked = workload((4, 100), framework="torch", dtype=dtype)
    assert (asked.dtype, asked.converts_to, asked.bytes) == (dtype, "float32", 800)
    assert asked.converted == workload((4, 100), framework="torch")
    for framework in ("numpy", "torch"):
        wide = workload((4, 100), RiemannLiouville(1.3, side="both"), framework=framework, dtype=dtype)
        assert wide.converts_to == "" or not RiemannLiouville(1.3, side="both").is_wide
    assert workload((4, 100), framework="numpy", dtype=dtype) == workload((4, 100), framework="numpy")


def test_a_kernel_that_does_not_read_a_dtype_is_asked_about_converted_samples() -> None:
    half = workload((4, 100), framework="torch", dtype="bfloat16", needs_gradient=True)
    single = half.converted
    for kernel in KERNELS:
        if kernel.as_stored:
            continue
        assert kernel.ask("refuses", half) == kernel.ask("refuses", single)
        cost, plain = kernel.ask("cost", half), kernel.ask("cost", single)
        assert cost.flops == plain.flops
        assert cost.bytes - plain.bytes == 4 * 400 * (2 + 4)  # data and result of both passes
        assert cost.workspace - plain.workspace == 2 * 400 * 4


def test_sums_around_the_product_are_not_made_in_half_precision() -> None:
    for definition in (RiemannLiouvilleIntegral(1.6), RiemannLiouville(0.4), Caputo(1.5), Caputo(0.5, side="both")):
        asked = workload((4, 100), definition, framework="torch", dtype="float16")
        assert (asked.converts_to == "") == (definition.differences < 0 or definition.side == "both")
        x = torch.ones(4, 100, dtype=torch.float16)
        manager = BackendManager(Settings(mode="prior", calibration="shipped"))
        assert apply("test", x, definition, 0.1, -1, manager).dtype == torch.float16
        (plan,) = {plan for site in manager.sites() for plan in site.plans()}
        assert plan.workload == asked


class Noting:
    """A kernel of a user, who knows of no half precision."""

    def __init__(self, as_stored: bool = False):
        self.seen: dict[str, list[Any]] = {}
        self.kernel = replace(
            DENSE.kernel,
            algorithm="blocks",
            prepare=self.prepare,
            run=partial(self.step, "run", DENSE.kernel.run),
            adjoint=partial(self.step, "adjoint", DENSE.kernel.adjoint),
            inner=self.inner,
            as_stored=as_stored,
            calls=Counter(),
        )

    def prepare(self, weights: Any, given: Workload) -> Any:
        self.seen["prepare"] = [given.dtype]
        return DENSE.kernel.prepare(weights, given)

    def step(self, name: str, real: Any, form: Any, frame: Any, shape: Any, x: Tensor, y: Tensor) -> None:
        self.seen[name] = [str(each.dtype).removeprefix("torch.") for each in (x, y)]
        real(form, frame, shape, x, y)

    def inner(self, form: Any, frame: Any, shape: Any, x: Tensor, g: Tensor) -> Tensor:
        self.seen["inner"] = [str(each.dtype).removeprefix("torch.") for each in (x, g)]
        return multiplied(DENSE.kernel.run, form, frame, shape, x, g)


@every_half
def test_a_kernel_that_reads_no_half_precision_never_sees_it(dtype: torch.dtype) -> None:
    noting = Noting()
    register(noting.kernel)
    try:
        alpha = torch.tensor(0.4, requires_grad=True)
        x = torch.ones(3, 50, dtype=dtype, requires_grad=True)
        y = apply("test", x, Caputo(alpha), 0.1, -1, manager_for(noting.kernel))
        torch.autograd.grad(y.sum(), (x, alpha))
    finally:
        unregister(noting.kernel)
    assert set(noting.seen) == {"prepare", "run", "adjoint", "inner"}
    assert {name for names in noting.seen.values() for name in names} == {"float32"}


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES.values()], ids=str)
def test_infinite_samples_are_no_reason_to_ask_a_second_kernel(dtype: torch.dtype) -> None:
    x = torch.ones(4, 17, dtype=dtype)
    x[3, 8] = torch.inf  # and NaN after it
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))  # which times the first calls
    before = [kernel.calls["run"] for kernel in KERNELS]
    for _ in range(5):
        apply("test", x, Caputo(0.5), 0.1, -1, manager)
    # The same kernel runs twice in each call: once more without the bad sample, for what comes before it.
    assert sorted(kernel.calls["run"] - n for kernel, n in zip(KERNELS, before, strict=True))[-2:] == [0, 10]
    assert not manager.failures()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES.values()], ids=str)
def test_what_is_rounded_to_half_precision_may_be_infinite(dtype: torch.dtype) -> None:
    x = torch.ones(4, 17, dtype=dtype)
    assert _is_finite(x)
    x[3, 16] = torch.inf
    assert not _is_finite(x)
    assert _is_finite(x, is_rounded=True) == (dtype != torch.float32)
    x[0, 0] = torch.nan
    assert not _is_finite(x, is_rounded=True)


@pytest.mark.parametrize("name", ["dtype", "converts_to"])
def test_a_dtype_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^Workload\({name}='f4x'\): needs the name of a dtype"):
        Workload("toeplitz", "torch", **{name: "f4x"})  # type: ignore[arg-type]
