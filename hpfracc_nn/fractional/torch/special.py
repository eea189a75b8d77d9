"""The special functions on PyTorch tensors: arguments, dtypes, and the fractional Fourier transform."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.special import partials, rotation
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.members import partial
from hpfracc_nn.fractional.torch.namespace import TORCH

_ARRAYS = (np.ndarray, np.generic, list, tuple)  # what becomes a tensor; torch.compile cannot join these types
_COMPLEX: dict[torch.dtype, np.dtype] = {
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}


def mittag_leffler(z: Any, alpha: Any, beta: Any, derivative: tuple[int, int, int]) -> Tensor:
    """Return E or a derivative of it; see `fractional.special.functions`."""
    owner = "mittag_leffler"
    given = _tensors(owner, z=z, alpha=alpha, beta=beta)
    _check_real(owner, alpha=given[1], beta=given[2])
    partials.check(owner, *(value if isinstance(value, int | float) else 1.0 for value in (alpha, beta)))
    like = _leading(given)
    points, alphas, betas = (_double(value, like) for value in given)
    total: Any = 0
    for (power, m, n), c in partials.combination(derivative).items():
        total = total + c * points**power * partial(points, alphas, betas, m, n)
    return total.to(_promoted(*given))


def fractional_fourier(x: Any, order: Any, dim: int, centred: bool) -> Tensor:
    """Return the fractional Fourier transform; see `fractional.special.functions`."""
    owner = "fractional_fourier"
    samples, orders = _tensors(owner, x=x, order=order)
    samples = samples if isinstance(samples, Tensor) else torch.as_tensor(samples)  # a number: axis() refuses it
    _check_real(owner, order=orders)
    axis = errors.axis(owner, dim, samples.ndim)
    rotation.check_shapes(owner, tuple(samples.shape), axis, tuple(orders.shape) if isinstance(orders, Tensor) else ())
    is_double = samples.dtype in (torch.float64, torch.complex128)
    data = samples.movedim(axis, -1).to(torch.complex128 if is_double else torch.complex64)
    data = torch.fft.ifftshift(data, dim=-1) if centred else data
    result = _learned(data, _double(orders, data)) if isinstance(orders, Tensor) else _fixed(data, orders)
    return (torch.fft.fftshift(result, dim=-1) if centred else result).movedim(-1, axis)


def _fixed(x: Tensor, order: float) -> Tensor:
    """Return the transform of an order that is a number."""
    whole = rotation.nearest("fractional_fourier", order)
    if order == whole:
        return rotation.transformed(x, whole % 4, None, TORCH)
    if torch.compiler.is_compiling():
        chirps = _chirps(_double(order - whole, x), x)
    else:
        kept = rotation.fixed_chirps(order - whole, x.shape[-1], _COMPLEX[x.dtype])
        chirps = [torch.as_tensor(chirp, device=x.device) for chirp in kept]
    return rotation.transformed(x, whole % 4, chirps, TORCH)


def _learned(x: Tensor, order: Tensor) -> Tensor:
    """Return the transform of orders in a tensor, without waiting for its values."""
    whole = torch.round(order.detach())
    return rotation.transformed(x, whole % 4, _chirps(order - whole, x), TORCH)


def _chirps(order: Tensor, x: Tensor) -> list[Tensor]:
    return [chirp.to(x.dtype) for chirp in rotation.chirps(order, x.shape[-1], TORCH)]


def _tensors(owner: str, **values: Any) -> list[Any]:
    """Return arrays as tensors on the device of those that are, and numbers as they are: they promote no tensor."""
    device = _leading(values.values()).device
    found = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            check_dense(owner, name, value)
        elif isinstance(value, _ARRAYS):
            value = torch.as_tensor(value, device=device)
        elif not isinstance(value, int | float | complex):
            raise TypeError(f"{owner}({name}={value!r}): needs numbers; pass a number, an array or a tensor.")
        found.append(value)
    return found


def _leading(values: Iterable[Any]) -> Tensor:
    """Return the first tensor that has axes, or else the first."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return next((tensor for tensor in tensors if tensor.ndim), tensors[0])


def _double(value: Any, like: Tensor) -> Tensor:
    """Return the value in double precision; what has no axes comes to the device of `like`, as in PyTorch."""
    if not isinstance(value, Tensor):
        value = torch.as_tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)
    value = value.to(torch.complex128 if value.is_complex() else torch.float64)
    return value if value.ndim else value.to(like.device)


def _promoted(z: Any, *parameters: Any) -> torch.dtype:
    """Return the floating dtype of a sum of these (torch.result_type, which torch.compile cannot follow)."""
    tensors = [value for value in (z, *parameters) if isinstance(value, Tensor)]
    leading = [tensor for tensor in tensors if tensor.ndim] or tensors
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in leading])
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    is_complex = z.is_complex() if isinstance(z, Tensor) else isinstance(z, complex)
    return torch.promote_types(dtype, torch.complex32) if is_complex else dtype


def _check_real(owner: str, **values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, complex) or (isinstance(value, Tensor) and value.is_complex()):
            raise TypeError(f"{owner}({name}={value!r}): needs real numbers; pass {name}.real.")
