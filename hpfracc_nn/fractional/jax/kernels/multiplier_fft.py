"""A multiplier by the real fast Fourier transform: O(n log n), any size, one to three axes."""

from __future__ import annotations

from jax import numpy as jnp

from hpfracc_nn.fractional import multiplier_costs as costs
from hpfracc_nn.fractional.jax.linear import transposed
from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.fractional.jax.symbol import Symbol
from hpfracc_nn.fractional.workloads import MULTIPLIER
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(symbol: Symbol, workload: Workload | None = None) -> Array:
    return symbol.values()


def run(values: Array, x: Array) -> Array:
    last = tuple(range(2, x.ndim))
    spectrum = jnp.fft.rfftn(x, axes=last)
    return jnp.fft.irfftn(spectrum * values.astype(spectrum.dtype)[None], x.shape[2:], axes=last)


register(Kernel(MULTIPLIER, "jax", "xla", "fft", run, transposed(run), prepare, costs.fft))
