"""PyTorch's own generic tests of an operator, run on the derivative with every kernel."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import make_tensor
from torch.testing._internal.common_dtype import floating_types_and
from torch.testing._internal.common_utils import TestGradients as TorchJudge
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from hpfracc_nn.fractional.definitions import Caputo, Definition, GrunwaldLetnikov, RiemannLiouville
from hpfracc_nn.fractional.torch.custom_op import APPLY, BACKWARD, as_json
from hpfracc_nn.selection import default_manager
from tests.torch_cases import DT, KERNELS, Forced, Refused, every_kernel

# PyTorch's own forward mode scripts its decompositions on first use.
TorchJudge.__test__ = False  # type: ignore[attr-defined]

SMALL = {  # name: shape, time axis, shape of alpha
    "one sample": ((2, 1), -1, ()),
    "one sample of two axes": ((2, 2, 1), -1, ()),  # where forward over reverse once met PyTorch's own assertion
    "empty batch": ((0, 5), -1, ()),
    "no samples": ((2, 0), -1, ()),
    "last": ((2, 5), -1, ()),
    "per channel": ((1, 2, 5), -1, (2,)),
    "middle, per channel": ((1, 5, 2), 1, (2,)),
}
LARGE = {
    "one series": ((9,), 0, ()),
    "first": ((9, 2), 0, ()),
    "middle": ((2, 10, 2), 1, ()),
    "alpha of every signal": ((2, 2, 9), -1, (2, 2)),
    "beyond one chunk": ((1, 34), -1, ()),
}
KINDS: tuple[type[Definition], ...] = (Caputo, RiemannLiouville, GrunwaldLetnikov)


def samples(
    layouts: dict[str, tuple],
    learned: bool,
    info: OpInfo,
    device: str,
    dtype: torch.dtype,
    requires_grad: bool,
    **_: Any,
) -> Iterator[SampleInput]:
    """Yield x, with alpha a number or a tensor that is an input too."""
    make = partial(make_tensor, device=device, dtype=dtype, requires_grad=requires_grad)
    alphas = partial(make_tensor, device=device, dtype=torch.float64, low=0.2, high=0.8, requires_grad=requires_grad)
    for shape, dim, alpha in layouts.values():
        order = alphas(alpha) if learned else torch.linspace(0.3, 0.6, max(1, alphas(alpha).numel())).reshape(alpha)
        yield SampleInput(make(shape), args=(order if learned else order.tolist(),), kwargs={"dim": dim})


def operator(forced: Forced, kind: type[Definition], layouts: dict[str, tuple], learned: bool) -> OpInfo:
    """Return the derivative as PyTorch describes its operators."""

    def derivative(x: Tensor, alpha: Any, *, dim: int = -1) -> Tensor:
        bounds = (0.0, 1.0)  # the same number of differences for every alpha
        return forced(x, kind(alpha, bounds=bounds), DT, dim)

    return OpInfo(
        f"derivative_{kind.__name__}",
        op=derivative,
        dtypes=floating_types_and(torch.float16, torch.bfloat16),
        sample_inputs_func=partial(samples, layouts, learned),
        supports_out=False,
        supports_forward_ad=True,
        supports_fwgrad_bwgrad=True,
        check_batched_grad=True,
        check_batched_gradgrad=True,
        check_batched_forward_grad=True,
        gradcheck_fast_mode=layouts is LARGE,
    )


CHECKS: dict[str, Callable[[TorchJudge, Forced, OpInfo], None]] = {
    "first gradients, forward mode, batched": lambda judge, forced, info: judge._check_helper(
        forced.device,
        torch.float64,
        info,
        info.get_op(),
        "gradcheck",
        check_forward_ad=True,
        check_batched_forward_grad=True,
    ),
    "second gradients, batched": lambda judge, forced, info: judge._check_helper(
        forced.device, torch.float64, info, info.get_op(), "bwgrad_bwgrad"
    ),
    "forward over reverse": lambda judge, forced, info: judge._check_helper(
        forced.device, torch.float64, info, info.get_op(), "fwgrad_bwgrad"
    ),
}


def judged(forced: Forced, check: str, info: OpInfo) -> None:
    try:
        CHECKS[check](TorchJudge(), forced, info)
    except unittest.SkipTest as skipped:
        raise Refused(str(skipped)) from None


every_check = pytest.mark.parametrize("check", CHECKS)
slow = pytest.mark.slow
some_learning = pytest.mark.parametrize("learned", [True, pytest.param(False, marks=slow)], ids=["tensor", "number"])
every_learning = pytest.mark.parametrize("learned", [False, True], ids=["number", "tensor"])


@every_kernel
@pytest.mark.parametrize("check", [pytest.param(name, marks=[slow] if at else []) for at, name in enumerate(CHECKS)])
def test_gradients_pass_the_judge_of_pytorchs_operators(forced: Forced, check: str) -> None:
    few = {name: SMALL[name] for name in ("one sample of two axes", "empty batch")}
    judged(forced, check, operator(forced, RiemannLiouville, few, learned=True))


@pytest.mark.slow
@every_kernel
@every_check
@every_learning
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("layouts", [SMALL, LARGE], ids=["small", "large"])
def test_all_gradients_pass_the_judge_of_pytorchs_operators(
    forced: Forced, check: str, learned: bool, kind: type[Definition], layouts: dict[str, tuple]
) -> None:
    judged(forced, check, operator(forced, kind, layouts, learned))


def gradients(info: OpInfo, sample: SampleInput) -> list[Tensor]:
    """Return the result and the gradients of its sum of squares, in x and in alpha where it is a tensor."""
    y = info(sample.input, *sample.args, **sample.kwargs)
    inputs = [tensor for tensor in (sample.input, *sample.args) if isinstance(tensor, Tensor)]
    return [y.detach(), *torch.autograd.grad(y.double().square().sum(), inputs)]


def every_sample(
    forced: Forced, learned: bool, dtype: torch.dtype = torch.float64
) -> Iterator[tuple[OpInfo, SampleInput]]:
    for kind in KINDS:
        info = operator(forced, kind, SMALL | LARGE, learned)
        for sample in info.sample_inputs(forced.device, dtype, requires_grad=True):
            yield info, sample


@pytest.mark.slow
@every_kernel
@some_learning
def test_noncontiguous_samples_give_the_same(forced: Forced, learned: bool) -> None:
    for info, sample in every_sample(forced, learned):
        apart = sample.noncontiguous()
        for found, expected in zip(gradients(info, apart), gradients(info, sample), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@every_kernel
@some_learning
@pytest.mark.parametrize(
    ("dtype", "tolerance"),  # a few roundings of the largest value
    [
        (torch.bfloat16, 3e-2),
        pytest.param(torch.float16, 4e-3, marks=slow),
        pytest.param(torch.float32, 1e-5, marks=slow),
    ],
    ids=str,
)
@pytest.mark.slow
def test_every_dtype_agrees_with_float64(forced: Forced, learned: bool, dtype: torch.dtype, tolerance: float) -> None:
    for info, sample in every_sample(forced, learned, dtype):
        wide = sample.transform(lambda t: t.detach().double().requires_grad_() if isinstance(t, Tensor) else t)
        found, expected = gradients(info, sample), gradients(info, wide)
        assert found[0].dtype == found[1].dtype == dtype
        for one, other in zip(found, expected, strict=True):
            size = other.abs().max() if other.numel() else torch.tensor(0.0)
            assert ((one - other).abs() <= tolerance * (1 + size)).all()


@slow
@every_kernel
@every_learning
def test_inputs_are_left_as_they_were(forced: Forced, learned: bool) -> None:
    for info, sample in every_sample(forced, learned):
        inputs = [tensor for tensor in (sample.input, *sample.args) if isinstance(tensor, Tensor)]
        before = [(tensor.detach().clone(), tensor._version) for tensor in inputs]
        gradients(info, sample)
        for tensor, (value, version) in zip(inputs, before, strict=True):
            assert torch.equal(tensor, value)
            assert tensor._version == version


@every_kernel
@pytest.mark.parametrize("size", [1, pytest.param(3, marks=slow)])
def test_vmap_over_any_axis_of_any_input_is_a_loop(forced: Forced, size: int) -> None:
    for kind, (shape, dim, alpha) in product(KINDS, [((2, 9), -1, ()), ((2, 5, 3), 1, (3,))]):
        x, order = torch.rand(*shape, dtype=torch.float64), torch.full(alpha, 0.4, dtype=torch.float64)

        def run(*inputs: Tensor, kind: type[Definition] = kind, dim: int = dim) -> Tensor:
            return forced(inputs[0], kind(inputs[1], bounds=(0, 1)), DT, dim)

        for axes in product([None, *range(len(shape) + 1)], [None, *range(len(alpha) + 1)]):
            if axes == (None, None):
                continue
            inputs = [
                tensor if axis is None else torch.stack([tensor * (1 + i / 10) for i in range(size)], axis)
                for tensor, axis in zip((x, order), axes, strict=True)
            ]
            found = torch.func.vmap(run, axes)(*inputs)
            for i, each in enumerate(found):
                single = [t if axis is None else t.select(axis, i) for t, axis in zip(inputs, axes, strict=True)]
                torch.testing.assert_close(each, run(*single), rtol=1e-12, atol=1e-12)


def opaque_arguments(learned: bool, requires_grad: bool) -> tuple[Any, ...]:
    x = torch.rand(2, 3, 40, dtype=torch.float64, requires_grad=requires_grad)
    alpha = torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64, requires_grad=requires_grad) if learned else None
    definition = as_json(RiemannLiouville(0.5, "bdf2", (0, 1)), learned)
    return x, alpha, definition, DT, -1, "test"


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def default_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force one kernel in the process-wide manager, which the opaque operations ask."""
    manager = default_manager()
    settings = manager.settings
    manager.configure(force_backend=request.param.backend, force_algorithm=request.param.algorithm)
    yield request.param.name
    manager.configure(force_backend=settings.force_backend, force_algorithm=settings.force_algorithm)


@pytest.mark.parametrize(
    ("learned", "requires_grad"),
    [(True, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(True, False), (False, True)])],
)
def test_the_operation_of_compiled_graphs_keeps_pytorchs_rules(
    default_kernel: str, learned: bool, requires_grad: bool
) -> None:
    arguments = opaque_arguments(learned, requires_grad)
    try:
        APPLY(*arguments)
    except LookupError as refusal:
        raise Refused(str(refusal)) from None
    torch.library.opcheck(APPLY, arguments)
    plain = opaque_arguments(learned, False)
    torch.library.opcheck(BACKWARD, (plain[0], *plain, True, learned))
