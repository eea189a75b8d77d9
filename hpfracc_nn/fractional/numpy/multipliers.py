"""Fourier multipliers on NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.fft import irfftn, rfftn

from hpfracc_nn.fractional.cache import Charge
from hpfracc_nn.fractional.definitions import Multiplier
from hpfracc_nn.fractional.layout import transformed_axes
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.weights import SHELF
from hpfracc_nn.selection import BackendManager

_COMPUTED_IN: dict[str, np.dtype] = {
    "float16": np.dtype(np.float32),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}

Factors = tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]  # the symbol, and columns of images


def apply(
    owner: str, x: np.ndarray, definition: Multiplier, dt: Any, dim: Any, manager: BackendManager | None = None
) -> np.ndarray:
    """Return the operator applied to `x`; same shape and dtype. See `fractional.derivative`.

    There is one routine, so that the manager has nothing to choose.
    """
    dtype = _COMPUTED_IN.get(x.dtype.name)
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
    axes, steps = transformed_axes(owner, x.shape, definition, dt, dim, np.shape(definition.alpha))
    if not x.size:
        return np.zeros_like(x)
    last = tuple(range(-len(axes), 0))
    data = np.moveaxis(x, axes, last).astype(dtype, copy=False)
    sizes = data.shape[-len(axes) :]
    key = "numpy", definition, sizes, steps, dtype
    symbol, images = SHELF.get(key, lambda charge: _factors(definition, sizes, steps, dtype, charge))
    y = irfftn(rfftn(data, axes=last) * symbol, sizes, axes=last)
    if images is not None:
        away = np.arange(sizes[-1], dtype=dtype) * dtype.type(steps[-1]) - dtype.type(steps[-1] * (sizes[-1] // 2))
        y += images[0] * data.sum(-1, keepdims=True) + images[1] * (data * away).sum(-1, keepdims=True)
    return np.ascontiguousarray(np.moveaxis(y, last, axes), dtype=x.dtype)


def _factors(
    definition: Multiplier, sizes: Sequence[int], steps: Sequence[float], dtype: np.dtype, charge: Charge
) -> Factors:
    real, imaginary, images = definition.on_grid(NUMPY.asarray(definition.alpha), sizes, steps, NUMPY)
    symbol = real.astype(dtype) if imaginary is None else (real + 1j * imaginary).astype(np.result_type(dtype, 1j))
    return charge(symbol), None if images is None else charge(tuple(column.astype(dtype) for column in images))
