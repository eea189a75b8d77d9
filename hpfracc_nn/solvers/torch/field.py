"""The user's right-hand side, checked at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.solvers.faults import singular
from hpfracc_nn.solvers.torch.casts import Casts
from hpfracc_nn.solvers.torch.packing import Packing, State
from hpfracc_nn.solvers.torch.wrapped import bare, is_finite

_TIMES = 1024  # are tensors of their own together

RightHandSide = Callable[[Tensor, Any], State]


class Field:
    """f(t_n, z) for states as steps work with them.

    Args:
        f: The user's function or module.
        packing: How its states are laid out.
        times: The mesh, [n + 1].
        like: A tensor of the states' dtype and device.
        casts: The autocast that f runs under, or None.
        owner: What solves, for messages.
        argument: What f is called there.
        shape: Of what f returns; None is a state's.

    Attributes:
        makes_leaves: Whether f is known to make tensors that require a gradient by themselves.
    """

    makes_leaves = False

    def __init__(
        self,
        f: RightHandSide,
        packing: Packing,
        times: np.ndarray,
        like: Tensor,
        casts: Casts | None = None,
        owner: str = "fdeint",
        argument: str = "f",
        shape: torch.Size | None = None,
    ):
        self.f, self.packing, self.argument = f, packing, argument
        self.label = f"{owner}({argument})"
        self.dtype, self.begin = like.dtype, float(times[0])
        self.times = torch.as_tensor(times).to(device=like.device, dtype=like.dtype)
        self._shape, self._is_tuple = packing.shape if shape is None else shape, packing.is_tuple
        self._whose = "the state's" if shape is None else "its first"
        self._part = -1  # which of the times are tensors of their own
        self._each: Sequence[Tensor] = ()
        self._casts = casts
        self._run = f if casts is None else self._autocast

    def __call__(self, n: int, z: Tensor) -> Tensor:
        """Return the right-hand side at step n, of the shape of z."""
        part = n // _TIMES
        if part != self._part:
            is_first, self._part = self._part < 0, part
            self._each = self.times[part * _TIMES : (part + 1) * _TIMES].unbind()
            if is_first:
                return self._first(n, z)
        t = self._each[n % _TIMES]
        if self._is_tuple:
            return self._of_tuple(n, t, z)
        found = self._run(t, z)
        if not isinstance(found, Tensor) or found.shape != self._shape or found.dtype != self.dtype:
            raise self._wrong(n, "", found, self._shape)
        return found

    def _first(self, n: int, z: Tensor) -> Tensor:
        """Return what a call returns, and see that it leaves z as it is, and that it has a value at the start."""
        kept, version = z.detach().clone(), None if z.is_inference() else z._version
        try:
            found = self(n, z)
        except RuntimeError as error:
            if z.requires_grad and "a leaf Variable that requires grad is being used in an in-place" in str(error):
                raise self._writes(n) from error
            raise
        if not torch.equal(z, kept) if version is None else z._version != version:
            z.detach().copy_(kept)  # z may be the caller's own
            raise self._writes(n)
        if n == 0 and not is_finite(found):
            is_nan = bool(torch.isnan(bare(found)).any())
            raise singular(self.label, self.argument, float(self.times[0]), is_nan, float(bare(z).abs().max()))
        return found

    def _writes(self, n: int) -> ValueError:
        return ValueError(
            f"{self.label}: needs a function that leaves y as it is; at step {n}, t={float(self.times[n]):g}, "
            f"{self.argument} wrote to it; return a new tensor, such as -y for y.neg_(), or work on y.clone()."
        )

    def at(self, t: Tensor, z: Tensor) -> Tensor:
        """Return the right-hand side at a time, unchecked: for tracers, which see one call in place of many."""
        return self.packing.joined(self._run(t, self.packing.parted(z)))

    def _autocast(self, t: Tensor, y: Any) -> Any:
        """Return f as it would run for the caller, with its results in the states' dtype."""
        assert self._casts is not None, "it is called where there is one"
        with self._casts.renewed():
            found = self.f(t, y)
        if isinstance(found, tuple | list):
            return tuple(part.to(self.dtype) if isinstance(part, Tensor) else part for part in found)
        return found.to(self.dtype) if isinstance(found, Tensor) else found

    def _of_tuple(self, n: int, t: Tensor, z: Tensor) -> Tensor:
        found, shapes = self._run(t, self.packing.parted(z)), self.packing.shapes
        if not isinstance(found, tuple | list) or len(found) != len(shapes):
            kind = f"{len(found)} tensors" if isinstance(found, tuple | list) else type(found).__name__
            raise TypeError(
                f"{self.label}: needs a tuple of {len(shapes)} tensors, one for each of y0; at step {n}, "
                f"t={float(self.times[n]):g}, {self.argument} returned {kind}."
            )
        for k, (part, shape) in enumerate(zip(found, shapes, strict=True)):
            if not isinstance(part, Tensor) or part.shape != shape or part.dtype != self.dtype:
                raise self._wrong(n, f" in place {k}", part, shape)
        return self.packing.joined(tuple(found))

    def _wrong(self, n: int, which: str, found: Any, shape: Sequence[int]) -> Exception:
        where = f"at step {n}, t={float(self.times[n]):g}, {self.argument} returned"
        if not isinstance(found, Tensor):
            return TypeError(
                f"{self.label}: needs a tensor of shape {tuple(shape)}{which}; {where} {type(found).__name__}."
            )
        if found.dtype != self.dtype:
            return TypeError(
                f"{self.label}: needs the state's dtype {self.dtype}{which}; {where} {found.dtype}; convert it there, "
                "or pass y0 in that dtype."
            )
        return ValueError(
            f"{self.label}: needs {self._whose} shape {tuple(shape)}{which}; {where} {tuple(found.shape)}; return a "
            "tensor of that shape at every step."
        )


def forward_product(z: Tensor, value: Tensor) -> Callable[[Tensor], Tensor]:
    """Return v -> J v, J the Jacobian of `value` in `z`: the derivative of u -> J' u, which is linear, times v."""
    if not value.requires_grad:
        return lambda v: torch.zeros_like(value)
    u = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, z, u, create_graph=True, allow_unused=True)
    if pulled is None or not pulled.requires_grad:
        return lambda v: torch.zeros_like(value)
    return lambda v: torch.autograd.grad(pulled, u, v, retain_graph=True)[0]


def product(out: Tensor, inputs: Sequence[Tensor], g: Tensor) -> list[Tensor]:
    """Return the products of g with the Jacobians of `out` in each of `inputs`; 0 where it does not depend on one."""
    if not out.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    # The graph is kept: f may share a part of it between calls.
    found = torch.autograd.grad(out, inputs, g, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(each) if part is None else part for part, each in zip(found, inputs, strict=True)]
