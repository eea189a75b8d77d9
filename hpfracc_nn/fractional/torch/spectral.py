"""Multipliers on PyTorch tensors: the checks, the axes, the factors; `multiplied.py` has the product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.axes import transformed_axes
from hpfracc_nn.fractional.definitions import Multiplier
from hpfracc_nn.fractional.shelf import Charge, free
from hpfracc_nn.fractional.torch.eager import alpha_shape, check_dense, computed_in, floating_alpha, may_be_read
from hpfracc_nn.fractional.torch.kernels import multiplier_dense, multiplier_fft  # noqa: F401  registered on import
from hpfracc_nn.fractional.torch.multiplied import OP, Symbol, multiplied
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.probe import is_traced
from hpfracc_nn.fractional.torch.streams import follow, on
from hpfracc_nn.fractional.weights import SHELF
from hpfracc_nn.selection import BackendManager, Site, given_manager

Factors = tuple[Symbol, tuple[Tensor, Tensor] | None]  # the symbol, and columns of images


def apply(
    owner: str, x: Tensor, definition: Multiplier, dt: Any, dim: Any, manager: BackendManager | None = None
) -> Tensor:
    """Return the operator applied to `x`; same shape, dtype and device. See `fractional.derivative`."""
    if torch.compiler.is_compiling():  # a graph is not told of plans
        return apply_at(owner, x, definition, dt, dim, None)
    site = given_manager(owner, manager).shared_site(OP, "torch", "functions")
    return apply_at(owner, x, definition, dt, dim, site)


def apply_at(owner: str, x: Tensor, definition: Multiplier, dt: Any, dim: Any, site: Site | None) -> Tensor:
    """Return the same with the plans of `site`.

    Args:
        owner: Who asks, for messages.
        x: Samples.
        definition: The operator.
        dt: One spacing, or one for each axis.
        dim: One axis or several, or None: see `transformed_axes`.
        site: Where the plans are kept; None in a compiled graph, which asks nobody.
    """
    dtype = computed_in(owner, x)
    check_dense(owner, "x", x)
    if not definition.is_fixed:
        floating_alpha(owner, definition.alpha)
        if may_be_read(definition.alpha):
            for value in definition.alpha.reshape(-1).tolist():
                definition.check(value)
    axes, steps = transformed_axes(owner, x.shape, definition, dt, dim, alpha_shape(definition))
    if 0 in x.shape or x.device.type == "meta":
        return x.clone() if definition.is_fixed else x + 0 * definition.alpha.sum().to(x)
    with torch.autocast(x.device.type, enabled=False):
        last = tuple(range(-len(axes), 0))
        data = x.movedim(axes, last).to(dtype)
        sizes = tuple(data.shape[-len(axes) :])
        symbol, images = _factors_of(definition, sizes, steps, data)
        y = multiplied(data, symbol, site)
        if images is not None:
            away = (torch.arange(sizes[-1], device=x.device) - sizes[-1] // 2).to(dtype) * steps[-1]
            y = y + images[0] * data.sum(-1, keepdim=True) + images[1] * (data * away).sum(-1, keepdim=True)
        return y.movedim(last, axes).contiguous().to(x.dtype)


def _factors_of(definition: Multiplier, sizes: tuple[int, ...], steps: tuple[float, ...], x: Tensor) -> Factors:
    """Return those that are kept, where alpha is a number or numbers and nobody traces; else new ones."""
    if torch.compiler.is_compiling() or not definition.is_fixed or is_traced(x, ()):
        return _factors(definition, sizes, steps, x.dtype, x.device, free)
    key = "torch", definition, sizes, steps, x.dtype, x.device

    def build(charge: Charge) -> Factors:
        with torch.inference_mode(False), torch.no_grad():  # autograd refuses tensors that inference mode made
            return _factors(definition, sizes, steps, x.dtype, x.device, on(x.device, charge))

    found = SHELF.get(key, build)
    follow(found[0].charge)
    return found


def _factors(
    definition: Multiplier,
    sizes: Sequence[int],
    steps: Sequence[float],
    dtype: torch.dtype,
    device: torch.device,
    charge: Charge,
) -> Factors:
    alpha = TORCH.asarray(definition.alpha).to(device)
    alpha = alpha.reshape(*alpha.shape, *(1,) * len(sizes))
    omega = []
    for axis, (n, step) in enumerate(zip(sizes, steps, strict=True)):
        frequencies = torch.fft.rfftfreq if axis == len(sizes) - 1 else torch.fft.fftfreq
        found = 2 * math.pi * frequencies(n, step, dtype=torch.float64, device=device)
        omega.append(found.reshape(-1, *(1,) * (len(sizes) - 1 - axis)))
    real, imaginary = definition.symbol(alpha, omega, TORCH)
    values = real.to(dtype) if imaginary is None else torch.complex(real.to(dtype), imaginary.to(dtype))
    images = definition.images(alpha, sizes[-1], steps[-1], TORCH)
    symbol = Symbol(charge(values), tuple(sizes), charge)
    return symbol, None if images is None else charge((images[0].to(dtype), images[1].to(dtype)))
