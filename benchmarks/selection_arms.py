"""The arms of the replayed choices: what runs, what an estimate says of it, and what its first use compiles.

`library` is the causal Toeplitz product of this package, forward, by each of its kernels; `training` the same with its
backward pass and in float64; `middle` with 16 signals side by side at each time step; `narrow` with 4 of them in
float64; `double` is `library` in float64. `convolution` is a causal convolution with as many taps as samples, as an
engineer would write it five times; `taps` one with 64 taps. All are float32 and run on one thread unless said
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from calls import both_ways, forced_managers, public, signals
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn import Caputo
from hpfracc_nn.fractional.torch import kernels as _registered  # noqa: F401
from hpfracc_nn.fractional.torch.kernels import toeplitz, xla
from hpfracc_nn.selection import Cost, Workload, kernels

Call = Callable[[], object]

TAPS, WIDTH, NARROW = 64, 16, 4
DOUBLE = ("training", "narrow", "double")  # operations in float64
EXPONENTIALS = {"float32": 24, "float64": 48}  # about as many as l1_2 of order 0.5 needs; only estimates see it


@dataclass(frozen=True)
class Arm:
    """One way to compute an operation.

    Args:
        make: The call for (rows, n), its weights ready.
        cost: What an estimate is made of.
        compiles: "" nothing, "shared" once for all sizes, "each" once for each size.
    """

    make: Callable[[int, int], Call]
    cost: Callable[[int, int], Cost]
    compiles: str = ""


def library(dtype: str = "float32", gradient: bool = False, width: int = 1) -> dict[str, Arm]:
    """The kernels of this package, through its public call; with a width, time is the middle axis."""
    names = [kernel.name for kernel in kernels("toeplitz", "torch")]
    return {name: _kernel_arm(name, dtype, gradient, width) for name in names}


def convolution() -> dict[str, Arm]:
    """A causal convolution with n taps."""
    return _generic(lambda n: n)


def taps() -> dict[str, Arm]:
    """A causal convolution with 64 taps, or with n where that is less."""
    return _generic(lambda n: min(n, TAPS))


OPERATIONS: dict[str, Callable[[], dict[str, Arm]]] = {
    "library": library,
    "convolution": convolution,
    "training": lambda: library("float64", gradient=True),
    "taps": taps,
    "middle": lambda: library(width=WIDTH),
    "narrow": lambda: library("float64", width=NARROW),
    "double": lambda: library("float64"),
}


def _kernel_arm(name: str, dtype: str, gradient: bool, width: int) -> Arm:
    def make(rows: int, n: int) -> Call:
        shape = (rows, n) if width == 1 else (rows, n, width)
        x = signals(*shape, dtype=getattr(torch, dtype)).requires_grad_(gradient)
        call = public(x, Caputo(0.5), forced_managers()[name], dim=1)
        return both_ways(call, [x], torch.ones_like(x)) if gradient else call

    def cost(rows: int, n: int) -> Cost:
        kernel = next(kernel for kernel in kernels("toeplitz", "torch") if kernel.name == name)
        work = Workload(
            "toeplitz",
            "torch",
            dtype=dtype,
            rows=rows,
            n=n,
            width=width,
            exponentials=EXPONENTIALS[dtype],
            needs_gradient=gradient,
        )
        found = kernel.cost(work)
        if kernel.backend != "xla":
            return found
        # Its launches hold a tenth of a compilation, which is counted apart here.
        return replace(found, launches=found.launches % xla.LAUNCHES + 40 * (1 + gradient))

    return Arm(make, cost, {"numba": "shared", "xla": "each"}.get(name.split("/")[0], ""))


def _generic(taps_of: Callable[[int], int]) -> dict[str, Arm]:
    def data(rows: int, n: int) -> tuple[Tensor, Tensor]:
        return signals(rows, n), torch.arange(1, taps_of(n) + 1, dtype=torch.float32) ** -0.5

    def by_fft(rows: int, n: int) -> Call:
        x, weights = data(rows, n)
        spectrum = torch.fft.rfft(weights, 2 * n)
        return lambda: torch.fft.irfft(torch.fft.rfft(x, 2 * n) * spectrum, 2 * n)[:, :n].contiguous()

    def by_conv1d(rows: int, n: int) -> Call:
        x, weights = data(rows, n)
        kernel = weights.flip(0)[None, None]
        return lambda: F.conv1d(F.pad(x[:, None], (weights.numel() - 1, 0)), kernel)[:, 0]

    def by_product(rows: int, n: int) -> Call:
        x, weights = data(rows, n)
        lags = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        column = F.pad(weights, (0, n - weights.numel()))
        matrix = torch.where(lags >= 0, column[lags.clamp(min=0)], 0.0)
        return lambda: torch.mm(x, matrix)

    def by_loop(rows: int, n: int) -> Call:
        x, weights = data(rows, n)
        function = compiled_loop()

        def call() -> Tensor:
            out = torch.empty_like(x)
            function(x.numpy(), weights.numpy(), out.numpy())
            return out

        return call

    def by_xla(rows: int, n: int) -> Call:
        import jax
        from jax import numpy as jnp

        x, weights = data(rows, n)
        spectrum = jnp.fft.rfft(jnp.asarray(weights.numpy()), 2 * n)

        @jax.jit
        def function(x: jax.Array) -> jax.Array:
            return jnp.fft.irfft(jnp.fft.rfft(x, 2 * n) * spectrum, 2 * n)[:, :n]

        return lambda: torch.from_dlpack(function(jax.dlpack.from_dlpack(x)).block_until_ready())

    def workload(rows: int, n: int) -> Workload:
        return Workload("toeplitz", "torch", rows=rows, n=n)

    def passes(rows: int, n: int, launches: int) -> Cost:
        """A multiplication and an addition for each tap in reach: one step of an element-wise pass."""
        reach = rows * (n * taps_of(n) - taps_of(n) ** 2 / 2)
        return Cost({"elementwise": reach}, bytes=8.0 * rows * n, launches=launches)

    def xla_cost(rows: int, n: int) -> Cost:
        return replace(toeplitz.fft_cost(workload(rows, n)), launches=8)

    return {
        "torch/fft": Arm(by_fft, lambda rows, n: toeplitz.fft_cost(workload(rows, n))),
        "torch/conv1d": Arm(by_conv1d, lambda rows, n: passes(rows, n, 3)),
        "torch/product": Arm(by_product, lambda rows, n: toeplitz.dense_cost(workload(rows, n))),
        "numba/loop": Arm(by_loop, lambda rows, n: passes(rows, n, 2), "shared"),
        "xla/fft": Arm(by_xla, xla_cost, "each"),
    }


@cache
def compiled_loop() -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """Return the direct sum, compiled by Numba and kept on disk."""
    import numba

    @numba.njit(cache=True, fastmath=True)
    def loop(x, weights, out):  # type: ignore[no-untyped-def]
        rows, n = x.shape
        for row in range(rows):
            signal, y = x[row], out[row]
            y[:] = 0
            for lag in range(0, weights.shape[0] - 3, 4):  # four lags for each pass over the result
                a, b, c, d = weights[lag], weights[lag + 1], weights[lag + 2], weights[lag + 3]
                reach = n - lag - 3
                y[lag] += a * signal[0]
                y[lag + 1] += a * signal[1] + b * signal[0]
                y[lag + 2] += a * signal[2] + b * signal[1] + c * signal[0]
                target = y[lag + 3 :]
                first, second, third, fourth = signal[3:], signal[2:], signal[1:], signal
                for k in range(reach):
                    target[k] += a * first[k] + b * second[k] + c * third[k] + d * fourth[k]
            for lag in range(weights.shape[0] // 4 * 4, weights.shape[0]):
                target = y[lag:]
                for k in range(n - lag):
                    target[k] += weights[lag] * signal[k]

    return loop
