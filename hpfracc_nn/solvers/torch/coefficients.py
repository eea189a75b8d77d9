"""Drift and diffusion as steps work with them, and what is asked of them at the door."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.solvers.noise import Noise
from hpfracc_nn.solvers.rules import NOISE_TYPES
from hpfracc_nn.solvers.sde import StochasticEquation
from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.packing import Packing, State

OWNER = "fsdeint"
_ROUNDING = 1e3  # times eps: what two ways to compute one product may differ by
_NEARBY = 1 / 64  # of a state's size, and of 1


class Coefficients:
    """f and g of one solve.

    Args:
        sde: The user's equation.
        packing: How its states are laid out.
        times: The mesh, [n + 1].
        like: A tensor of the states' dtype and device.
        low: The dtype of the autocast that the equation runs under, or None.
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
        low: torch.dtype | None,
        diffusion: torch.Size,
    ):
        self._given = sde, packing, times, like, low, diffusion
        self.packing, self.noise_type = packing, sde.noise_type
        self.eps = torch.finfo(low or like.dtype).eps
        self.dt = float(times[-1] - times[0]) / (times.size - 1)
        self.step = torch.full((), self.dt, dtype=like.dtype, device=like.device)
        self.drift = Field(sde.drift, packing, times, like, low, OWNER, "sde.drift")
        self.diffusion = Field(sde.diffusion, packing, times, like, low, OWNER, "sde.diffusion", diffusion)
        self._is_elementwise = len(diffusion) == len(packing.shape)
        self.shape = packing.shape if self._is_elementwise else torch.Size((*diffusion[:-2], diffusion[-1]))

    def shifted(self, part: float) -> Coefficients:
        """Return those at times that lie a part of a step later."""
        sde, packing, times, like, low, diffusion = self._given
        return Coefficients(sde, packing, times + part * self.dt, like, low, diffusion)

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


def noise_type_of(sde: Any) -> str:
    """Return the noise type that an equation declares.

    Raises:
        TypeError: It has no drift, no diffusion, or no noise type.
        ValueError: It declares another.
    """
    for name in ("drift", "diffusion"):
        if not callable(getattr(sde, name, None)):
            raise TypeError(
                f"{OWNER}(sde of type {type(sde).__name__}): needs a method {name}(t, y); write a class that has it, "
                "or pass SDE(drift, diffusion)."
            )
    if not hasattr(sde, "noise_type"):
        raise TypeError(
            f"{OWNER}(sde of type {type(sde).__name__}): needs an attribute noise_type; set it to one of "
            f"{', '.join(map(repr, NOISE_TYPES))}."
        )
    return errors.one_of(OWNER, "sde.noise_type", sde.noise_type, NOISE_TYPES)


def check_noise(owner: str, sde: Any, noise: Noise) -> None:
    """Raise unless an equation goes with a noise: one that has `needs_brownian`, the reason, stands on Brownian motion.

    Raises:
        ValueError: The noise is another.
    """
    reason = getattr(sde, "needs_brownian", "")
    if reason and not noise.is_brownian:
        raise ValueError(f"{owner}(noise={noise.name!r}): needs Brownian motion: {reason}; pass noise=Brownian().")


def diffusion_shape(sde: StochasticEquation, y0: State, t0: float, low: torch.dtype | None) -> torch.Size:
    """Return the shape of the diffusion at the start, that of the joined state where states are tuples.

    Raises:
        TypeError: It is no tensor.
        ValueError: Its shape is not that of the noise type.
    """
    like = y0[0] if isinstance(y0, tuple) else y0
    t = torch.as_tensor(t0).to(like)
    with torch.no_grad(), torch.autocast(like.device.type, low, enabled=low is not None):
        found = sde.diffusion(t, y0)
    if isinstance(y0, tuple):
        return _joined_shape(sde.noise_type, found, y0)
    if not isinstance(found, Tensor):
        raise TypeError(f"{OWNER}(sde.diffusion): needs a tensor; it returned {type(found).__name__}.")
    return fitting_shape(sde.noise_type, found.shape, y0.shape)


def _joined_shape(noise_type: str, found: Any, y0: tuple[Tensor, ...]) -> torch.Size:
    shapes = [tuple(part.shape) for part in y0]
    if noise_type not in ("additive", "diagonal"):
        raise ValueError(
            f"{OWNER}(sde.noise_type={noise_type!r}): needs 'diagonal' or 'additive' noise for a state that is a "
            "tuple; join the tensors into one."
        )
    given = [tuple(part.shape) for part in found] if isinstance(found, tuple | list) else type(found).__name__
    if given != shapes:
        raise ValueError(
            f"{OWNER}(sde.diffusion): needs a tuple of tensors of y0's shapes {shapes} for noise_type {noise_type!r}; "
            f"it returned {given}."
        )
    return torch.Size([sum(part.numel() for part in y0)])


def fitting_shape(noise_type: str, shape: torch.Size, state: torch.Size) -> torch.Size:
    """Return the shape of a diffusion, or raise where it is not that of the noise type.

    Raises:
        ValueError: It is not.
    """
    is_matrix = len(shape) == len(state) + 1 and shape[:-1] == state and len(state) > 0 and shape[-1] > 0
    allowed = {
        "diagonal": shape == state,
        "additive": shape == state or is_matrix,
        "scalar": is_matrix and shape[-1] == 1,
        "general": is_matrix,
    }
    if allowed[noise_type]:
        return shape
    matrix = f"{(*state, 'm')}".replace("'", "")
    wanted = {
        "diagonal": f"{tuple(state)}, a number for each entry",
        "additive": f"{tuple(state)}, or {matrix} for m motions",
        "scalar": f"{(*state, 1)}, one motion for all entries",
        "general": f"{matrix}, m motions",
    }
    fitting = [name for name, is_allowed in allowed.items() if is_allowed]
    way_out = f"declare noise_type {' or '.join(map(repr, fitting))}" if fitting else "return that shape"
    raise ValueError(
        f"{OWNER}(sde.diffusion): needs shape {wanted[noise_type]}, for noise_type {noise_type!r}; it returned "
        f"{tuple(shape)}; {way_out}."
    )


def check_structure(coefficients: Coefficients, z0: Tensor, needs_diagonal: bool) -> None:
    """Raise unless the diffusion depends on the state as its noise type says.

    Looked at are the start, a state nearby, since a slope may vanish at the start alone, and that state at the end.
    Random numbers that the diffusion draws by itself stay those that it would draw without a look.

    Raises:
        ValueError: It depends on y where it is additive, or on other entries of y where a scheme needs it diagonal.
    """
    noise_type = coefficients.noise_type
    if noise_type != "additive" and not (needs_diagonal and noise_type == "diagonal"):
        return
    z0 = z0.detach()
    # Upwards, where prices, variances and rates stay in their domain, and by another part for each entry.
    parts = 1.5 + 0.5 * torch.cos(torch.arange(1.0, z0.numel() + 1)).to(z0).view_as(z0)
    nearby = z0 + _NEARBY * parts * (1 + z0.abs())
    check = _check_additive if noise_type == "additive" else _check_diagonal
    field = coefficients.diffusion
    with torch.random.fork_rng([z0.device] if z0.is_cuda else []):
        for t, point in ((field.times[0], z0), (field.times[0], nearby), (field.times[-1], nearby)):
            with torch.enable_grad():
                z = point.requires_grad_()
                g = field.at(t, z)
            if g.requires_grad:
                check(g, z, t, coefficients.eps)


def _check_additive(g: Tensor, z: Tensor, t: Tensor, eps: float) -> None:
    direction = torch.cos(torch.arange(1.0, g.numel() + 1)).to(g).view_as(g)
    (found,) = torch.autograd.grad(g, z, direction, allow_unused=True)
    if found is not None and bool(((found != 0) & found.isfinite()).any()):
        raise ValueError(
            f"{OWNER}(sde.diffusion): needs a diffusion that does not depend on y, for noise_type 'additive', and "
            f"at t={float(t):g} it does; declare 'diagonal' or 'general'."
        )


def _check_diagonal(g: Tensor, z: Tensor, t: Tensor, eps: float) -> None:
    directions = torch.cos(torch.arange(1.0, g.numel() + 1)).to(g).view_as(g), torch.ones_like(g)
    each = [torch.autograd.grad(g, z, v, retain_graph=True, allow_unused=True)[0] for v in directions]
    if each[0] is None:
        return
    found, alone = each[0], directions[0] * each[1]
    size = _ROUNDING * eps * float(each[1].abs().max())
    if bool(((found - alone).abs() > size).any()):
        raise ValueError(
            f"{OWNER}(sde.diffusion): needs entries that depend on the same entry of y alone, for this scheme and "
            f"noise_type 'diagonal', and at t={float(t):g} they depend on others; pass scheme='euler', or 'heun' in "
            "Stratonovich's sense."
        )
