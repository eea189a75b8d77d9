"""What the tests of the torch operators share: kernels made to run, definitions, the dense float64 oracle."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.outcomes import Skipped
from torch import Tensor

from hpfracc_nn.fractional.boundary import boundary_of, difference
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.selection import BackendManager, Kernel, Settings, Workload, kernels
from tests.definition_cases import SCHEMES, within

KERNELS = kernels("toeplitz", "torch")
COMPILED = {"xla"}  # backends that compile every shape: a quarter of a second each
DT = 0.5
ALPHAS = (0, 0.1, 0.5, 0.9, 1, 1.1, 1.5, 1.9, 2)


@lru_cache(maxsize=32)
def manager_for(kernel: Kernel) -> BackendManager:
    """Return a manager that runs this kernel or raises."""
    return BackendManager(
        Settings(force_backend=kernel.backend, force_algorithm=kernel.algorithm, calibration="shipped", mode="prior")
    )


@lru_cache(maxsize=1)
def shipped_manager() -> BackendManager:
    """Return a manager with the default settings and the shipped rates: its plans are the same everywhere."""
    return BackendManager(Settings(mode="prior", calibration="shipped"))


class Refused(Skipped):
    """A kernel does not take the workload: the test is skipped with its reason."""


@dataclass(frozen=True, eq=False)
class Forced:
    """One kernel, on one device, that runs whatever it is called with."""

    kernel: Kernel
    device: str

    def __call__(self, x: Tensor, definition: Definition, dt: float = DT, dim: int = -1) -> Tensor:
        try:
            return apply("test", x, definition, dt, dim, manager_for(self.kernel))
        except LookupError as error:
            if type(error) is not LookupError:
                raise
            raise Refused(str(error)) from None

    def random(self, *shape: int, seed: int = 0) -> Tensor:
        """Return standard normal samples in float64; no run of them is like another."""
        values = np.random.default_rng(seed).standard_normal(shape)
        return torch.as_tensor(values, dtype=torch.float64, device=self.device)


class Tally:
    """Lets a loop go on where a kernel refuses, and skips the test if it refused everything."""

    def __init__(self) -> None:
        self.ran, self.reasons = 0, [""]

    @contextmanager
    def each(self) -> Iterator[None]:
        try:
            yield
            self.ran += 1
        except Refused as refused:
            self.reasons.append(str(refused))

    def check(self) -> None:
        if not self.ran:
            pytest.skip(self.reasons[-1])


def unusable(kernel: Kernel) -> str | None:
    """Return why a kernel refuses even the smallest workload, as where its package is not installed."""
    return kernel.refuses(Workload("toeplitz", "torch"))


def _forced_cases(chosen: Any, slow: Collection[str] = COMPILED) -> list[Any]:
    """Return every chosen kernel on every device; those of the backends in `slow` run with the slow tests only."""
    devices = {"cpu": (), "cuda": (pytest.mark.gpu,)}
    return [
        pytest.param(
            Forced(kernel, device),
            marks=(*marks, *([pytest.mark.slow] if kernel.backend in slow else [])),
            id=f"{kernel.name}-{device}",
        )
        for device, marks in devices.items()
        for kernel in KERNELS
        if chosen(kernel)
    ]


every_kernel = pytest.mark.parametrize("forced", _forced_cases(lambda kernel: True))
# For the few tests that cover a kernel's maps, layouts and channels: the compiled ones run in the fast suite too.
every_kernel_always = pytest.mark.parametrize("forced", _forced_cases(lambda kernel: True, slow=()))
every_causal_kernel = pytest.mark.parametrize(
    "forced", _forced_cases(lambda kernel: kernel.algorithm != "fft")
)  # a transform mixes all samples, so that rounding is not causal
every_scheme = pytest.mark.parametrize(
    ("kind", "scheme"), SCHEMES, ids=[f"{kind.__name__}-{scheme}" for kind, scheme in SCHEMES]
)


def alphas_of(kind: type[Definition]) -> tuple[float, ...]:
    """Return the orders to test a definition at: those of all, and below 0 where they are allowed."""
    return tuple(within(kind, (-1, -0.5, *ALPHAS)))


@lru_cache(maxsize=256)  # as many as one definition and scheme need, for all kernels in turn
def stencil_of(definition: Definition, n: int, dt: float = DT) -> Stencil:
    """Return the operator on `n` samples, in NumPy."""
    return definition.stencil(n, dt, NUMPY)


@lru_cache(maxsize=256)
def matrix(definition: Definition, n: int, dt: float = DT) -> Tensor:
    """Return the operator as a dense float64 matrix, the oracle of every kernel."""
    return torch.as_tensor(stencil_of(definition, n, dt).as_matrix())


def multiplied(matrix: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """Return matrix @ x along `dim`, on the CPU."""
    return (x.detach().cpu().movedim(dim, -1) @ matrix.T).movedim(-1, dim)


def magnitude(stencil: Stencil, x: Tensor, dim: int = -1) -> float:
    """Return what errors are relative to: |left| |d|, a bound of the product's samples, plus |columns| |x|.

    Not the result itself, nor |matrix| |x|: both may be far smaller, where differences cancel.
    """
    data = x.detach().cpu().to(torch.float64).movedim(dim, -1).reshape(-1, 1, x.shape[dim], 1).numpy()
    d = difference(data, boundary_of(stencil))
    size = np.linalg.norm(stencil.weights, axis=-1).max() * np.linalg.norm(d, axis=2).max()
    for column in (stencil.start, stencil.analytic):
        if column is not None and column.size:
            size += np.abs(column).max() * max(np.abs(data).max(), np.abs(d).max())
    return float(max(size, 1e-300))
