"""What solves are asked for: states, orders and times, checked at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.tracing import has_tangent
from hpfracc_nn.solvers.torch.packing import State
from hpfracc_nn.solvers.torch.wrapped import bare, is_finite, is_shared

_DTYPES = (torch.float32, torch.float64)


def checked_state(owner: str, name: str, y: Any) -> State:
    """Return a state, lists of tensors as tuples.

    Raises:
        TypeError: It is no tensor and no tuple of such, or of a dtype or on a device that does not fit.
        ValueError: It holds no numbers, or one that is not finite.
    """
    parts = tuple(y) if isinstance(y, tuple | list) else (y,)
    if not parts:
        raise ValueError(f"{owner}({name}=()): needs a tensor, or some of them; pass the state at the start.")
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(
                f"{owner}({name} of type {type(part).__name__}): needs a tensor, or a tuple of tensors; pass "
                f"torch.as_tensor({name})."
            )
        check_dense(owner, name, part)
        if part.dtype not in _DTYPES:
            raise TypeError(
                f"{owner}({name} of dtype {part.dtype}): needs float32 or float64; "
                + (
                    f"pass ({name}.real, {name}.imag), a state of two parts, and write the equation for them."
                    if part.is_complex()
                    else f"convert with {name}.to(torch.float32)."
                )
            )
        if part.dtype != parts[0].dtype or part.device != parts[0].device:
            raise TypeError(
                f"{owner}({name}): needs tensors of one dtype and device; they are {parts[0].dtype} on "
                f"{parts[0].device} and {part.dtype} on {part.device}; convert them with .to(...)."
            )
        if part.numel() == 0:
            raise ValueError(
                f"{owner}({name} of shape {tuple(part.shape)}): needs numbers; pass a state that has some."
            )
        if not is_finite(part):
            raise ValueError(f"{owner}({name}): needs finite numbers; {name} holds {_wrong_number(part)}.")
    return parts if isinstance(y, tuple | list) else parts[0]


def _wrong_number(x: Tensor) -> str:
    """Return the first number that is not finite, with its place where that can be told."""
    plain = bare(x).reshape(-1)
    i = int(torch.isfinite(plain).logical_not().nonzero()[0])
    where = f" at place {i} of {plain.numel()}" if is_shared(x) else " in a batch"
    return f"{plain[i].item()}{where}; replace it, or leave what it belongs to out"


def orders_of(owner: str, alpha: Any) -> np.ndarray:
    """Return the values of alpha, [a].

    Raises:
        TypeError: It is neither a number nor a floating tensor.
        ValueError: It differs within a batch of `torch.func.vmap`.
    """
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"{owner}(alpha of dtype {alpha.dtype}): needs a floating tensor; pass alpha.double().")
        return _values(owner, "alpha", alpha).reshape(-1)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.floating):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a floating tensor; pass for example 0.5."
        )
    return np.array([float(alpha)])


def times_of(owner: str, ts: Any) -> Any:
    """Return the output times without their framework.

    Raises:
        ValueError: They want a gradient, or differ within a batch of `torch.func.vmap`.
    """
    if not isinstance(ts, Tensor):
        return ts
    if ts.requires_grad or has_tangent(ts):
        raise ValueError(
            f"{owner}(ts that require a gradient): needs times that are given, because the mesh is made of them; pass "
            "ts.detach()."
        )
    return _values(owner, "ts", ts)


def _values(owner: str, name: str, x: Tensor) -> np.ndarray:
    """Return a tensor's numbers, also inside a transform, where operations would return what has none."""
    if not is_shared(x):
        raise ValueError(
            f"{owner}({name}): needs the same {name} throughout torch.func.vmap; pass an alpha for each entry of y0, "
            f"or call {owner} once for each."
        )
    return np.array(bare(x).tolist(), dtype=np.float64)


def resolution(ts: Any) -> float:
    """Return the relative precision that times were given in."""
    if isinstance(ts, Tensor) and ts.is_floating_point():
        return torch.finfo(ts.dtype).eps
    if isinstance(ts, np.ndarray) and ts.dtype.kind == "f":
        return float(np.finfo(ts.dtype).eps)
    return float(np.finfo(np.float64).eps)


def order_numbers(owner: str, alpha: Any) -> np.ndarray:
    """Return the orders that a module is given as numbers, float64.

    Raises:
        TypeError: It is given a tensor, which it would not learn.
    """
    if isinstance(alpha, Tensor):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; pass learn_alpha=True "
            "to train it, an Alpha that several layers share, or use the function for an alpha that you compute."
        )
    values = errors.as_numbers(alpha)
    if values is None or not values.size:
        raise TypeError(
            f"{owner}(alpha={alpha!r}): needs a real number, or one for each entry of the state; pass for example "
            "alpha=0.5."
        )
    return values
