"""Drift and diffusion as steps work with them, and what is asked of them at the door."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import is_traced
from hpfracc_nn.solvers.sde import StochasticEquation
from hpfracc_nn.solvers.stochastic import NEARBY, OWNER, additive_message, diagonal_message, fitting_shape, joined_shape
from hpfracc_nn.solvers.torch.casts import Casts
from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.packing import Packing, State

_ROUNDING = 1e3  # times eps: what two ways to compute one product may differ by


class Coefficients:
    """f and g of one solve.

    Args:
        sde: The user's equation.
        packing: How its states are laid out.
        times: The mesh, [n + 1].
        like: A tensor of the states' dtype and device.
        casts: The autocast that the equation runs under, or None.
        diffusion: The shape of g.

    Attributes:
        drift: f.
        diffusion: g.
        dt: The step.
        step: The same as a tensor: a number is made into one at each product.
        shape: Of the noise of one step.
        eps: Of the dtype that f and g are computed in.
    """

    def __init__(
        self,
        sde: StochasticEquation,
        packing: Packing,
        times: np.ndarray,
        like: Tensor,
        casts: Casts | None,
        diffusion: torch.Size,
    ):
        self._given = sde, packing, times, like, casts, diffusion
        self.packing, self.noise_type = packing, sde.noise_type
        self.eps = torch.finfo(like.dtype).eps if casts is None else casts.eps(like.dtype, like.device.type)
        self.dt = float(times[-1] - times[0]) / (times.size - 1)
        if self.dt > torch.finfo(like.dtype).max:
            raise ValueError(
                f"{OWNER}(dt={self.dt:g}): needs steps that {like.dtype} can hold; pass times in another unit."
            )
        self.step = torch.full((), self.dt, dtype=like.dtype, device=like.device)
        self.drift = Field(sde.drift, packing, times, like, casts, OWNER, "sde.drift")
        self.diffusion = Field(sde.diffusion, packing, times, like, casts, OWNER, "sde.diffusion", diffusion)
        self._is_elementwise = len(diffusion) == len(packing.shape)
        self.shape = packing.shape if self._is_elementwise else torch.Size((*diffusion[:-2], diffusion[-1]))

    def shifted(self, part: float) -> Coefficients:
        """Return those at times that lie a part of a step later."""
        sde, packing, times, like, casts, diffusion = self._given
        return Coefficients(sde, packing, times + part * self.dt, like, casts, diffusion)

    def with_slope(self, n: int, y: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Return g, and g g' times a factor, of a diagonal diffusion: its Jacobian is its own transpose."""
        if is_traced(y, (factor,)):  # whose tensors torch.autograd.grad does not take
            g, pulled = torch.func.vjp(lambda z: self.diffusion(n, z), y)  # type: ignore[misc]  # three, with aux
            return g, pulled(g * factor)[0]
        is_recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            # A view: a diffusion that holds the start may depend on y another way too; the slope is in z alone.
            z = y.view_as(y) if y.requires_grad else y.detach().requires_grad_()
            g = self.diffusion(n, z)
            if not g.requires_grad:
                return g, torch.zeros_like(y)
            (found,) = torch.autograd.grad(g, z, g * factor, create_graph=is_recorded, allow_unused=True)
        g = g if is_recorded else g.detach()
        return g, torch.zeros_like(y) if found is None else found

    def applied(self, g: Tensor, noise: Tensor) -> Tensor:
        """Return g times the noise of a step, of a state's shape."""
        if self._is_elementwise:
            return g * noise
        if self.noise_type == "scalar":
            return g.squeeze(-1) * noise
        return torch.matmul(g, noise.unsqueeze(-1)).squeeze(-1)

    def moved(self, x: Tensor, g: Tensor, noise: Tensor, room: Tensor | None = None) -> Tensor:
        """Return x and g times the noise, added; the last bit is not that of a sum. In `room` where that saves one."""
        if self._is_elementwise:
            return torch.addcmul(x, g, noise, out=room)
        return x + self.applied(g, noise)


def diffusion_shape(sde: StochasticEquation, y0: State, t0: float, casts: Casts | None) -> torch.Size:
    """Return the shape of the diffusion at the start, that of the joined state where states are tuples.

    Raises:
        TypeError: It is no tensor.
        ValueError: Its shape is not that of the noise type.
    """
    like = y0[0] if isinstance(y0, tuple) else y0
    t = torch.as_tensor(t0, dtype=like.dtype, device=like.device)
    with torch.no_grad(), nullcontext() if casts is None else casts.renewed():
        # A copy: what it writes to its argument is refused later, and is not to be the caller's tensor.
        found = sde.diffusion(t, tuple(part.clone() for part in y0) if isinstance(y0, tuple) else y0.clone())
    if isinstance(y0, tuple):
        parts = [tuple(part.shape) for part in found] if isinstance(found, tuple | list) else type(found).__name__
        return torch.Size(joined_shape(sde.noise_type, parts, [tuple(part.shape) for part in y0]))
    if not isinstance(found, Tensor):
        raise TypeError(f"{OWNER}(sde.diffusion): needs a tensor; it returned {type(found).__name__}.")
    return torch.Size(fitting_shape(sde.noise_type, found.shape, y0.shape))


def check_structure(coefficients: Coefficients, z0: Tensor, needs_diagonal: bool) -> None:
    """Raise unless the diffusion depends on the state as its noise type says.

    Looked at are the start, a state nearby, since a slope may vanish at the start alone, and that state at the end. An
    additive diffusion that has no slope is told by its values at the first two; a threshold elsewhere is not seen.
    Random numbers that the diffusion draws by itself are the same at each look, and stay those that it would draw
    without one.

    Raises:
        ValueError: It depends on y where it is additive, or on other entries of y where a scheme needs it diagonal.
    """
    noise_type = coefficients.noise_type
    if noise_type != "additive" and not (needs_diagonal and noise_type == "diagonal"):
        return
    z0 = z0.detach()
    # Upwards, where prices, variances and rates stay in their domain, and by another part for each entry.
    parts = 1.5 + 0.5 * torch.cos(torch.arange(1.0, z0.numel() + 1)).to(z0).view_as(z0)
    nearby = z0 + NEARBY * parts * (1 + z0.abs())
    check = _check_additive if noise_type == "additive" else _check_diagonal
    field = coefficients.diffusion
    values = []
    for t, point in ((field.times[0], z0), (field.times[0], nearby), (field.times[-1], nearby)):
        with torch.random.fork_rng([z0.device] if z0.is_cuda else []):
            with torch.enable_grad():
                z = point.requires_grad_()
                g = field.at(t, z)
            if g.requires_grad:
                check(g, z, t, coefficients.eps)
        values.append(g.detach())
    is_told = noise_type == "additive" and not is_traced(values[0], ())  # a map over what it reads has no one value
    if is_told and _differ(values[0], values[1], coefficients.eps):
        raise ValueError(additive_message(f"at t={float(field.times[0]):g}"))


def _check_additive(g: Tensor, z: Tensor, t: Tensor, eps: float) -> None:
    direction = torch.cos(torch.arange(1.0, g.numel() + 1)).to(g).view_as(g)
    (found,) = torch.autograd.grad(g, z, direction, allow_unused=True)
    if found is not None and bool(((found != 0) & found.isfinite()).any()):
        raise ValueError(additive_message(f"at t={float(t):g}"))


def _differ(one: Tensor, other: Tensor, eps: float) -> bool:
    """Return whether finite values are further apart than rounding takes them."""
    apart = (one - other).abs() > _ROUNDING * eps * torch.maximum(one.abs(), other.abs())
    return bool((apart & one.isfinite() & other.isfinite()).any())


def _check_diagonal(g: Tensor, z: Tensor, t: Tensor, eps: float) -> None:
    directions = torch.cos(torch.arange(1.0, g.numel() + 1)).to(g).view_as(g), torch.ones_like(g)
    each = [torch.autograd.grad(g, z, v, retain_graph=True, allow_unused=True)[0] for v in directions]
    if each[0] is None:
        return
    found, alone = each[0], directions[0] * each[1]
    size = _ROUNDING * eps * float(each[1].abs().max())
    if bool(((found - alone).abs() > size).any()):
        raise ValueError(diagonal_message(f"t={float(t):g}"))
