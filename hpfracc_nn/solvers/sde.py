"""Stochastic equations: the protocol, the method that names and options mean, and the checks before the first step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.explosions import Limits
from hpfracc_nn.solvers.history import HISTORIES, Automatic, Exponentials, FFTBlocks, Full, History, Window
from hpfracc_nn.solvers.mesh import ON_MESH
from hpfracc_nn.solvers.noise import NOISES, Noise
from hpfracc_nn.solvers.rules import INTERPRETATIONS, NOISE_TYPES, Case, Rule, driver_of, rule_of
from hpfracc_nn.solvers.sde_schemes import STOCHASTIC_SCHEMES, StochasticScheme
from hpfracc_nn.solvers.volterra import VOLTERRA_WEIGHTS, VolterraWeights, stability

Coefficient = Callable[..., Any]  # a function of (t, y), in JAX of (t, y, args) where the caller passes `args`


class StochasticEquation(Protocol):
    """dX = drift(t, X) dt + diffusion(t, X) dZ, or with a memory function before both where alpha < 1.

    Attributes:
        noise_type: "additive" (the diffusion does not depend on y: of y's shape, one motion for each entry, or
            `[*y.shape, m]`, m motions for each state along y's last axis), "diagonal" (of y's shape, and each entry
            depends on the same entry of y alone where a scheme relies on that), "scalar" (`[*y.shape, 1]`, one motion
            for all entries of a state) or "general" (`[*y.shape, m]`).

    An equation that only Brownian motion may drive has an attribute `needs_brownian`, a text that gives the reason.

    Examples:
        >>> class OrnsteinUhlenbeck:
        ...     noise_type = "additive"
        ...
        ...     def drift(self, t, y):
        ...         return -y
        ...
        ...     def diffusion(self, t, y):
        ...         return torch.full_like(y, 0.5)
        >>> x = fsdeint(OrnsteinUhlenbeck(), torch.zeros(20_000), np.linspace(0, 1, 101))
        >>> round(x[-1].var().item(), 2)  # (1 - exp(-2)) / 8 = 0.108
        0.11
    """

    @property
    def noise_type(self) -> str: ...

    def drift(self, t: Any, y: Any) -> Any:
        """Return f(t, y), of y's shape."""
        ...

    def diffusion(self, t: Any, y: Any) -> Any:
        """Return g(t, y), of the noise type's shape."""
        ...


@dataclass(frozen=True)
class SDE:
    """A stochastic equation made of two functions, its drift and its diffusion.

    Args:
        drift: f(t, y), of y's shape, in units of y / time.
        diffusion: g(t, y), of the noise type's shape, in units of y / noise; see `StochasticEquation`.
        noise_type: "additive", "diagonal", "scalar" or "general"; the solver refuses any other.

    Examples:
        >>> sde = SDE(lambda t, y: 0.2 * y, lambda t, y: 0.1 * y)  # a price
        >>> x = fsdeint(sde, torch.ones(20_000), np.linspace(0, 1, 101))
        >>> round(x[-1].mean().item(), 2)  # exp(0.2) = 1.2214
        1.22
    """

    drift: Coefficient
    diffusion: Coefficient
    noise_type: str = "diagonal"


OWNER = "fsdeint"
NEARBY = 1 / 64  # how far from the start a diffusion is checked too: relative to the state's size, and absolute

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StochasticMethod:
    """How a stochastic equation is solved: the options of a solve.

    Attributes:
        noise: The noise that drives the equation.
        scheme: How steps are taken.
        weights: How the past is weighted below alpha = 1.
        interpretation: The sense of the stochastic integral, "ito" or "stratonovich".
        history: How the past is kept below alpha = 1.
    """

    noise: Noise
    scheme: StochasticScheme
    weights: VolterraWeights
    interpretation: str
    history: History

    @classmethod
    def of(
        cls, owner: str, noise: Any, scheme: Any, weights: Any, interpretation: Any, history: Any
    ) -> StochasticMethod:
        """Return the StochasticMethod for a noise and for options that are given by their names or as objects.

        Raises:
            ValueError: A name is unknown.
            TypeError: The noise is none, or an option is neither a name nor an option.
        """
        return cls(
            checked_noise(owner, noise),
            checks.named(owner, "scheme", scheme, STOCHASTIC_SCHEMES, tuple(STOCHASTIC_SCHEMES.values())),
            checks.named(owner, "weights", weights, VOLTERRA_WEIGHTS, tuple(VOLTERRA_WEIGHTS.values())),
            errors.one_of(owner, "interpretation", interpretation, INTERPRETATIONS),
            checks.named(owner, "history", history, HISTORIES, (Automatic, Full, FFTBlocks, Exponentials, Window)),
        )

    def rule(self, noise_type: str, alpha: float) -> Rule:
        """Return the row of the table of `solvers.rules` that allows this method for a noise type and an order alpha.

        Raises:
            ValueError: No row does.
        """
        noise = self.noise
        case = Case(
            driver_of(noise),
            self.interpretation,
            alpha,
            noise_type,
            self.scheme.name,
            noise.regularity,
            noise.is_open,
            type(noise).__name__,
        )
        return rule_of(OWNER, case)

    def limits(self, orders: np.ndarray | None, times: np.ndarray, first: float) -> Limits | None:
        """Return the stability limits of a solve for a drift that decays; None for a scheme that declares none.

        Args:
            orders: The orders alpha, [a], or None where the equation has no memory (alpha = 1).
            times: The mesh, as time since the start, [n_steps + 1].
            first: The time at which the mesh begins.
        """
        if orders is not None:
            return Limits(OWNER, self.scheme.name, partial(stability, self.weights), orders, times, first)
        largest = getattr(self.scheme, "stability", None)
        if largest is None:
            return None
        return Limits(OWNER, self.scheme.name, lambda alpha: largest, np.ones(1), times, first)


def checked_noise(owner: str, noise: Any) -> Noise:
    """Return `noise` itself, after checking that it is a `Noise`.

    Raises:
        TypeError: `noise` is no `Noise`.
    """
    if not isinstance(noise, Noise):
        raise TypeError(
            f"{owner}(noise of type {type(noise).__name__}): needs a noise; pass Brownian(), or another of "
            f"{', '.join(sorted(each.__name__ for each in NOISES.values()))}."
        )
    return noise


def noise_type_of(sde: Any) -> str:
    """Return the noise type that an equation declares.

    Raises:
        TypeError: The equation has no drift, no diffusion, or no noise type.
        ValueError: The declared noise type is unknown.
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
    """Raise ValueError where an equation that declares `needs_brownian` is driven by another noise.

    Raises:
        ValueError: The equation has a text `needs_brownian`, and the noise is not Brownian motion.
    """
    reason = getattr(sde, "needs_brownian", "")
    if reason and not noise.is_brownian:
        raise ValueError(f"{owner}(noise={noise.name!r}): needs Brownian motion: {reason}; pass noise=Brownian().")


def joined_shape(noise_type: str, returned: Sequence[Shape] | str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of the diffusion of a state of several parts, joined into one axis.

    Args:
        noise_type: The noise type of the equation.
        returned: The shapes of the parts that the diffusion returned; where it returned no tuple, the name of what it
            returned.
        shapes: The shapes of the state's parts.

    Raises:
        ValueError: The noise type takes no state of several parts, or the shapes are not those of the state.
    """
    if noise_type not in ("additive", "diagonal"):
        raise ValueError(
            f"{OWNER}(sde.noise_type={noise_type!r}): needs 'diagonal' or 'additive' noise for a state that is a "
            "tuple; join its parts into one."
        )
    if returned != shapes:
        raise ValueError(
            f"{OWNER}(sde.diffusion): needs a tuple of y0's shapes {shapes} for noise_type {noise_type!r}; it "
            f"returned {returned}."
        )
    return (sum(math.prod(shape) for shape in shapes),)


def fitting_shape(noise_type: str, shape: Shape, state: Shape) -> Shape:
    """Return `shape`, what the diffusion returned for a state of shape `state`, checked against the noise type.

    Raises:
        ValueError: The shape is not one that the noise type allows.
    """
    shape, state = tuple(shape), tuple(state)
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
        "diagonal": f"{state}, a number for each entry",
        "additive": f"{state}, or {matrix} for m motions",
        "scalar": f"{(*state, 1)}, one motion for all entries",
        "general": f"{matrix}, m motions",
    }
    fitting = [name for name, is_allowed in allowed.items() if is_allowed]
    way_out = f"declare noise_type {' or '.join(map(repr, fitting))}" if fitting else "return that shape"
    raise ValueError(
        f"{OWNER}(sde.diffusion): needs shape {wanted[noise_type]}, for noise_type {noise_type!r}; it returned "
        f"{shape}; {way_out}."
    )


def additive_message(where: str) -> str:
    """Return the error message for a diffusion that is declared additive but depends on y; `where` says at which t."""
    return (
        f"{OWNER}(sde.diffusion): needs a diffusion that does not depend on y, for noise_type 'additive', and "
        f"{where} it does; declare 'diagonal' or 'general'."
    )


def diagonal_message(where: str) -> str:
    """Return the error message for a diagonal diffusion whose entries depend on other entries of y.

    The scheme relies on their independence; `where` says at which t they depend on others.
    """
    return (
        f"{OWNER}(sde.diffusion): needs entries that depend on the same entry of y alone, for this scheme and "
        f"noise_type 'diagonal', and at {where} they depend on others; pass scheme='euler', or 'heun' in "
        "Stratonovich's sense."
    )


def not_finite(where: str) -> str:
    """Return the error message for a solution that is not finite; `where` says at which step or time."""
    return (
        f"{OWNER}: the solution is not finite {where}; take smaller steps, or keep drift and diffusion defined there "
        "and their growth at most linear."
    )


def check_orders(orders: np.ndarray) -> None:
    """Raise unless all orders are in (1/2, 1].

    Raises:
        ValueError: An order is not.
    """
    wrong = orders[~((orders > 0.5) & (orders <= 1))]
    if wrong.size:
        raise ValueError(
            f"{OWNER}(alpha={wrong[0]:g}): needs 1/2 < alpha <= 1, because up to 1/2 the memory function is not square "
            "integrable and no path has a finite variance; keep a learned order above, or solve a drift alone by "
            "fdeint."
        )


def mesh_of(outputs: np.ndarray, eps: float, dt: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the uniform mesh as time since the start, [n_steps + 1], and the index in it of each output.

    Args:
        outputs: Output times, increasing.
        eps: The relative rounding of the output times: eps of the dtype that the caller passed them in.
        dt: The step size, or None where the outputs are the mesh.

    Raises:
        ValueError: Without `dt`, the outputs are not equally spaced; with `dt`, they are not multiples of it.
    """
    rounding, passed = 8 * eps * float(np.abs(outputs).max()), outputs - outputs[0]
    if dt is None:
        spacing = np.diff(outputs)
        if np.ptp(spacing) > rounding + ON_MESH * spacing.mean():
            i = int(np.argmax(np.abs(spacing - spacing.mean())))
            raise ValueError(
                f"{OWNER}(ts=...): needs equal steps or a step; ts[{i + 1}] - ts[{i}]={spacing[i]:g} and the mean is "
                f"{spacing.mean():g}; pass dt, of which all are multiples."
            )
        return np.linspace(0.0, passed[-1], spacing.size + 1), np.arange(spacing.size + 1)
    step = errors.positive_step(OWNER, dt)
    index = passed / step
    whole = np.round(index).astype(np.int64)
    is_whole = np.abs(passed - whole * step) <= rounding + ON_MESH * step
    is_whole[1:] &= np.diff(whole) > 0
    if not is_whole.all():
        i = int(np.argmin(is_whole))
        raise ValueError(
            f"{OWNER}(dt={step:g}): needs a step of which all times are multiples, one for each of them; ts[{i}] lies "
            f"{index[i]:.6g} steps from the start; pass another dt or other times."
        )
    return np.linspace(0.0, passed[-1], int(whole[-1]) + 1), whole
