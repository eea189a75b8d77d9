"""The operators on NumPy arrays."""

from __future__ import annotations

import time

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.numpy import kernels, probe  # noqa: F401  registered on import
from hpfracc_nn.fractional.numpy.differences import difference, slope
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.weights import fixed_stencil
from hpfracc_nn.selection import BackendManager, Workload, default_manager, running

_COMPUTED_IN = {
    np.dtype(np.float16): np.float32,
    np.dtype(np.float32): np.float32,
    np.dtype(np.float64): np.float64,
}

ARRAYS = (np.ndarray,)  # the classes that need no further look


def apply(
    owner: str, x: np.ndarray, definition: Definition, dt: float, dim: int, manager: BackendManager | None
) -> np.ndarray:
    """Return the operator applied to `x` along `dim`; same shape and dtype. See `fractional.derivative`."""
    dtype = _COMPUTED_IN.get(x.dtype)
    if dtype is None:
        raise TypeError(
            f"{owner}(x of dtype {x.dtype}): needs float16, float32 or float64; "
            + ("pass x.real and x.imag apart." if x.dtype.kind == "c" else "pass x.astype(numpy.float64).")
        )
    if not definition.is_fixed:
        raise TypeError(
            f"{owner}(alpha of type {type(definition.alpha).__name__}): needs a float or an array of floats "
            "for a NumPy x; pass x as a tensor of the same framework as alpha."
        )
    dt, axis = errors.positive_step(owner, dt), errors.axis(owner, dim, x.ndim)
    alpha = np.asarray(definition.alpha)
    layout = layout_of(owner, x.shape, axis, alpha.shape)
    if x.size == 0:
        return np.zeros_like(x)
    ordered = x if layout.order is None else x.transpose(layout.order)
    data = ordered.reshape(layout.canonical).astype(dtype, copy=False)
    stencil = fixed_stencil(definition, layout.n, dt)
    y = _product(stencil, layout.channels, data, manager)
    y = y.reshape(layout.permuted)
    if layout.inverse is not None:
        y = y.transpose(layout.inverse)
    return np.ascontiguousarray(y, dtype=x.dtype)


def _product(stencil: Stencil, channels: int, x: np.ndarray, manager: BackendManager | None) -> np.ndarray:
    batch, _, n, width = x.shape
    manager = default_manager() if manager is None else manager
    plan = manager.shared_site("toeplitz", "numpy", "numpy").pick(
        (x.shape, x.dtype, channels),
        lambda: Workload(
            op="toeplitz",
            framework="numpy",
            dtype=x.dtype.name,
            rows=batch * channels,
            n=n,
            width=width,
            channels=channels,
        ),
    )
    kernel, is_timed = plan.kernel, plan.due()
    # NumPy warns of infinities that meet; a row that holds one is unspecified, and that is documented.
    with running(plan), np.errstate(invalid="ignore"):
        d = difference(x, stencil)
        column = kernel.prepare(np.asarray(stencil.left).reshape(channels, n), x.dtype)
        begin = time.perf_counter()
        y = kernel.run(column, d)
        seconds = time.perf_counter() - begin
        kernel.calls["run"] += 1
        if stencil.starts:
            start = stencil.start.reshape(channels, n, 1).astype(x.dtype)
            y += start * d[:, :, stencil.start_index, None]
        if stencil.analytic is not None:
            columns = stencil.analytic.reshape(channels, -1, n, 1)
            y += (columns[:, 0] * x[:, :, :1].astype(np.float64)).astype(x.dtype)
            if columns.shape[1] == 2:
                y += (columns[:, 1] * slope(x)).astype(x.dtype)
    if is_timed:
        manager.record(plan, seconds)
    return y
