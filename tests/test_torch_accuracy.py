"""float32 keeps its digits: relative L2 error against the float64 product of the same float32 samples."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import (
    Caputo,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
)
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.selection import BackendManager, Kernel, Settings
from tests.torch_cases import COMPILED, KERNELS, manager_for, shipped_manager, unusable

SIGNALS = ("t**2", "sin", "20 + sin", "random", "random walk")
FIXED = 1e-6  # a few roundings of the data's differences
LEARNED = 1e-5  # bounds (0, 1) difference once also where alpha is near 0: the price is a digit
DERIVATIVES = (0.1, 0.5, 0.9, 1.1, 1.5, 1.9)
INTEGRALS = (0.1, 0.5, 0.9)
OPERATORS: list[Definition] = [
    *(kind(alpha) for kind in (Caputo, RiemannLiouville, GrunwaldLetnikov) for alpha in DERIVATIVES),
    *(RiemannLiouvilleIntegral(alpha) for alpha in INTEGRALS),
]
KINDS = (Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral)
LEARNED_ALPHAS = (0.1, 0.5, 0.9)
LENGTHS = [64, 1024, 16384, 65536]
every_operator = pytest.mark.parametrize("definition", OPERATORS, ids=repr)
every_kernel = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, marks=[pytest.mark.slow] if kernel.backend in COMPILED else [], id=kernel.name)
        for kernel in KERNELS
    ],
)
every_length = pytest.mark.parametrize("n", LENGTHS)


@lru_cache(maxsize=4)
def samples(n: int) -> Tensor:
    """Return the five signals on [0, 1], [5, n], in float32."""
    t, rng = np.linspace(0, 1, n), np.random.default_rng(n)
    walk = np.cumsum(rng.standard_normal(n))
    rows = [t**2, np.sin(6 * t), 20 + np.sin(6 * t), rng.standard_normal(n), walk]
    return torch.as_tensor(np.stack(rows)).to(torch.float32)


@lru_cache(maxsize=1)
def exact_manager() -> BackendManager:
    """Return a manager of kernels without exponentials: the reference."""
    return BackendManager(Settings(force_algorithm="fft", calibration="shipped"))


@lru_cache(maxsize=64)
def product(definition: Definition, n: int) -> Tensor:
    """Return the float64 operator on the float32 samples."""
    return apply("test", samples(n).double(), definition, 1 / n, -1, exact_manager())


def errors(
    definition: Definition, n: int, manager: BackendManager, fixed: Definition | None = None
) -> dict[str, float]:
    """Return the relative L2 error of each signal; `fixed` is the same operator with a number for alpha."""
    exact = product(fixed or definition, n)
    found = apply("test", samples(n), definition, 1 / n, -1, manager)
    assert found.dtype == torch.float32
    distance = (found.detach().double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    return dict(zip(SIGNALS, distance.tolist(), strict=True))


def above(bound: float, found: dict[str, float]) -> dict[str, float]:
    return {signal: error for signal, error in found.items() if not error <= bound}


@every_length
@every_operator
def test_single_precision_keeps_six_digits_in_the_plans_picked(definition: Definition, n: int) -> None:
    assert above(FIXED, errors(definition, n, shipped_manager())) == {}


@every_kernel
@every_length
def test_single_precision_keeps_six_digits_in_every_kernel(kernel: Kernel, n: int) -> None:
    skip_unfit(kernel, n)
    found = {repr(each): above(FIXED, errors(each, n, manager_for(kernel))) for each in OPERATORS}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.slow
@every_length
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("alpha", LEARNED_ALPHAS)
def test_a_learned_order_keeps_five_digits_in_the_plans_picked(kind: Any, alpha: float, n: int) -> None:
    assert above(LEARNED, errors(learned(kind, alpha), n, shipped_manager(), kind(alpha))) == {}


@every_kernel
@every_length
@pytest.mark.slow
def test_a_learned_order_keeps_five_digits_in_every_kernel(kernel: Kernel, n: int) -> None:
    skip_unfit(kernel, n)
    # A transform's rounding grows with n: 1.3e-5 for rough data at 65536 and alpha 0.1.
    bound = 2 * LEARNED if kernel.algorithm == "fft" and n > 16384 else LEARNED
    for kind in KINDS:
        for alpha in LEARNED_ALPHAS:
            found = errors(learned(kind, alpha), n, manager_for(kernel), kind(alpha))
            assert above(bound, found) == {}, (kind, alpha)


def learned(kind: Any, alpha: float) -> Definition:
    return kind(torch.tensor(alpha, dtype=torch.float64, requires_grad=True), bounds=(0, 1))


def skip_unfit(kernel: Kernel, n: int) -> None:
    reason = unusable(kernel)
    if reason is not None:
        pytest.skip(reason)
    if kernel.algorithm == "dense" and n > 1024:
        pytest.skip("a dense matrix is for short series")
