"""Fourier multipliers on arrays of any framework: y = F^-1 (symbol F x), by the real fast Fourier transform.

All operations are the frameworks' own, so that their transforms, compilers and derivatives of any order follow. The
factors of a fixed order are computed once by NumPy and kept; those of a learned one are traced, in float64.

The factors are the symbol on the half spectrum, whose last axis has n // 2 + 1 frequencies and whose other axes have
all; and for space="line" two columns [*c, n] that take the signal's periodic images away, one times its sum, `mass`,
and one times its first moment, `moment`. *c are the axes of the orders. `steps` are the spacings along the transformed
axes, and `operator` is a framework's module of array functions, such as `fractional/torch/operator.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from hpfracc_nn.fractional.definitions import FourierMultiplier
from hpfracc_nn.fractional.dispatch import backend, shape_of
from hpfracc_nn.fractional.layout import transformed_axes
from hpfracc_nn.fractional.namespace import NAMESPACES, NUMPY, Array, Namespace

_TYPICAL = 0.5


def apply(owner: str, x: Array, definition: FourierMultiplier, dt: Any, dim: Any, framework: str) -> Array:
    """Return a multiplier applied to `x`, an array of real floats; same shape, dtype and device.

    Args:
        owner: The public function, for messages.
        x: Samples.
        definition: The multiplier.
        dt: One spacing, or one for each axis.
        dim: One axis or several, or None: see `transformed_axes`.
        framework: Name of the framework of `x`.
    """
    operator, xp = backend(framework).operator, NAMESPACES[framework]
    dtype = operator.check_samples(owner, "x", x, definition)
    alpha = None if definition.is_fixed else operator.checked_orders(owner, definition)
    axes, steps = transformed_axes(owner, x.shape, definition, dt, dim, shape_of(definition.alpha))
    if framework == "jax":
        for axis in axes:
            operator.check_known(owner, "samples", x.shape[axis])
    if operator.is_hollow(x):
        return x + 0 if alpha is None else x + 0 * xp.like(alpha.sum(), x)
    if alpha is not None:
        definition = _without_alpha(definition)
    return operator.compiled_once(_filtered, (definition, axes, steps, dtype, framework), x, alpha)


def _without_alpha(definition: FourierMultiplier) -> FourierMultiplier:
    """Return the definition with the number 0.5 in place of its tensor alpha, unvalidated, to be the key of a cache."""
    key = copy(definition)  # by its state: a subclass may refuse the number, or take more arguments than its fields
    object.__setattr__(key, "alpha", _TYPICAL)
    return key


def _filtered(
    x: Array,
    alpha: Array | None,
    definition: FourierMultiplier,
    axes: tuple[int, ...],
    steps: tuple[float, ...],
    dtype: Any,
    framework: str,
) -> Array:
    """Return the multiplier applied to samples, in their axes and dtype.

    Args:
        x: Samples.
        alpha: The learned orders, an array [*c]; None where the definition's are fixed.
        definition: The multiplier; its alpha is not read where orders are passed.
        axes: The axes to transform.
        steps: The spacing along each of them.
        dtype: The dtype to compute in.
        framework: Name of the framework of x.
    """
    operator, xp = backend(framework).operator, NAMESPACES[framework]
    last = tuple(range(-len(axes), 0))
    is_last = all(axis == x.ndim + place for axis, place in zip(axes, last, strict=True))
    data = xp.astype(x if is_last else xp.moveaxis(x, axes, last), dtype)
    sizes = tuple(data.shape[-len(axes) :])
    symbol, *images = _factors(definition, alpha, sizes, steps, data, framework)
    y = operator.filtered(data, symbol, sizes, last)
    if images:
        mass, moment = images
        n = sizes[-1]
        away = xp.astype(xp.constant((np.arange(n) - n // 2) * steps[-1], data), dtype)
        y = y + mass * xp.sum(data, axis=-1, keepdims=True) + moment * xp.sum(data * away, axis=-1, keepdims=True)
    return xp.contiguous(xp.astype(y if is_last else xp.moveaxis(y, last, axes), x.dtype))


def _factors(
    definition: FourierMultiplier,
    alpha: Array | None,
    sizes: tuple[int, ...],
    steps: tuple[float, ...],
    data: Array,
    framework: str,
) -> tuple[Array, ...]:
    """Return the factors: the symbol and, for space="line", the two columns; kept where the orders are fixed.

    Args:
        definition: The multiplier; its alpha is not read where orders are passed.
        alpha: The learned orders, an array [*c]; None where the definition's are fixed.
        sizes: How many samples there are along each transformed axis.
        steps: The spacing along each.
        data: The samples, whose dtype and device the factors take.
        framework: Name of the framework of the samples.
    """
    operator, xp = backend(framework).operator, NAMESPACES[framework]
    if alpha is None and operator.may_keep(data):

        def build() -> tuple[np.ndarray, ...]:
            dtype = np.dtype(str(data.dtype).rpartition(".")[2])
            found = _grid(NUMPY.asarray(definition.alpha), definition, sizes, steps, NUMPY)
            return _typed(found, dtype, backend("numpy").operator, NUMPY)

        return operator.kept(("multiplier", definition, sizes, steps, data.dtype), build, data)
    orders = xp.asarray(definition.alpha) if alpha is None else alpha
    return _typed(operator.in_double(_grid, (definition, sizes, steps), orders, data), data.dtype, operator, xp)


def _grid(
    alpha: Array, definition: FourierMultiplier, sizes: Sequence[int], steps: Sequence[float], xp: Namespace
) -> dict[str, Array]:
    """Return the factors in float64 for orders alpha [*c], by name: "real", "imaginary", "mass" and "moment".

    The first two are the parts of the symbol. Factors that the multiplier does not have are left out.
    """
    real, imaginary, images = definition.on_grid(alpha, sizes, steps, xp)
    found = {"real": real} if imaginary is None else {"real": real, "imaginary": imaginary}
    return found if images is None else {**found, "mass": images[0], "moment": images[1]}


def _typed(factors: dict[str, Array], dtype: Any, operator: Any, xp: Namespace) -> tuple[Array, ...]:
    """Return factors in the samples' dtype: the symbol, real or complex, then the two columns, if there are any.

    `factors` are float64, by name: "real", "imaginary", the parts of the symbol, "mass" and "moment", the columns.
    """
    typed = {name: xp.astype(values, dtype) for name, values in factors.items()}
    symbol = operator.whole([typed[name] for name in ("real", "imaginary") if name in typed])
    return symbol, *(typed[name] for name in ("mass", "moment") if name in typed)
