"""Neural fractional and stochastic differential equations as modules, and linear equations of several orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place
from hpfracc_nn.fractional.torch.tracing import is_watched
from hpfracc_nn.selection import BackendManager, given_manager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.checks import check_stochastic_orders, stochastic_bounds
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.mesh import Mesh
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.multi_term import Terms
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.rules import NOISE_TYPES
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.sde import SDE, StochasticMethod
from hpfracc_nn.solvers.sde_schemes import StochasticScheme
from hpfracc_nn.solvers.torch import traced
from hpfracc_nn.solvers.torch.fde import solved
from hpfracc_nn.solvers.torch.fsde import integrated
from hpfracc_nn.solvers.torch.integrate import Progress
from hpfracc_nn.solvers.torch.state import S, bare, order_numbers
from hpfracc_nn.solvers.volterra import VolterraWeights


class Ordered(nn.Module):
    """A module that solves an equation of order alpha: fixed numbers, or a learned `Alpha` in its attribute `order`."""

    if TYPE_CHECKING:  # torch.jit.script reads the annotations of a class
        order: Alpha | None
        _fixed: Any  # the numbers of an order that is not learned; no buffer, which model.float() would round

    @property
    def alpha(self) -> Tensor:
        """The order alpha, or the orders, in real units, float64; the mean where the order is random."""
        return self._fixed_alpha() if self.order is None else self.order.mean

    def drawn(self) -> Tensor:
        """Return the order alpha for one solve, float64; a new draw where the order is random."""
        return self._fixed_alpha() if self.order is None else self.order.beside_local(type(self).__name__)

    def _fixed_alpha(self) -> Tensor:
        return torch.tensor(self._fixed, dtype=torch.float64, device="cpu")


class CaputoEquation(Ordered):
    """The part that `NeuralFDE` and layers that solve an equation share: order, scheme and options, without f.

    Args:
        alpha: As in `NeuralFDE`.
        learn_alpha: As in `NeuralFDE`.
        bounds: As in `NeuralFDE`.
        scheme: As in `fdeint`.
        history: As in `fdeint`.
        mesh: As in `fdeint`.
        n_steps: As in `fdeint`.
        adjoint: As in `fdeint`.
        manager: The BackendManager that chooses the kernel of the history; None is the process-wide one.
        device: The device of alpha's parameter.
        dtype: The dtype of alpha's parameter; alpha itself is float64.

    Raises:
        ValueError: An argument is out of range, or a learned alpha begins outside its bounds.
    """

    def __init__(
        self,
        alpha: float | Sequence[float] | Alpha,
        *,
        learn_alpha: bool,
        bounds: tuple[float, float] | None,
        scheme: str | Scheme,
        history: str | History,
        mesh: str | Mesh,
        n_steps: int | None,
        adjoint: bool,
        manager: BackendManager | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.method = Method.of(owner, scheme, history, mesh)
        self.n_steps = None if n_steps is None else errors.count(owner, "n_steps", n_steps)
        self.adjoint = errors.claim(owner, "adjoint", adjoint)
        errors.claim(owner, "learn_alpha", learn_alpha)
        check_place(owner, device, dtype)
        self._fixed, self.order = None, None
        if isinstance(alpha, Alpha):
            _check_bounds(owner, alpha.bounds_for(owner, bounds, alpha.shape))
            self.order = alpha
        else:
            values = order_numbers(owner, alpha)
            if not ((values > 0) & (values < 2)).all():
                raise ValueError(f"{owner}(alpha={alpha}): needs 0 < alpha < 2; pass for example 0.5.")
            if learn_alpha:
                low, high = _check_bounds(owner, (0.0, 1.0) if bounds is None else bounds)
                self.order = Alpha(values.tolist(), (low, high), values.shape, owner=owner, device=device, dtype=dtype)
            else:
                self._fixed = values.tolist()
        self.learn_alpha = self.order is not None
        self.site = given_manager(owner, manager).site(self.method.op, "torch")

    def last(self, f: Callable[[Tensor, Tensor], Tensor], y0: Tensor, t1: float) -> Tensor:
        """Return the state at t1 of a solve from time 0 on, in `n_steps` equal steps.

        Under a compiler or tracer, and for tensors without numbers, the steps are those of `traced.last`.

        Args:
            f: The right-hand side.
            y0: The state at 0, float32 or float64.
            t1: The time at the end, in the unit of f's time.
        """
        assert self.n_steps is not None, "a layer says how many steps it takes"
        if torch.compiler.is_compiling() or is_watched(y0) or y0.is_meta or y0.numel() == 0:
            return traced.last(type(self).__name__, f, y0, self.drawn(), t1, self.n_steps, self.method.scheme)
        states: Tensor = solved(
            f, y0, (0.0, t1), self.drawn(), self.method, self.site, self.n_steps, adjoint=self.adjoint
        )
        return states[-1]

    def extra_repr(self) -> str:
        kind = "learn_alpha=True" if self.learn_alpha else f"alpha={self._fixed}"
        method = self.method
        return (
            f"{kind}, scheme={method.scheme.name!r}, history={method.history.name!r}, "
            f"mesh={type(method.mesh).__name__.lower()!r}, n_steps={self.n_steps}"
        )


def _check_bounds(owner: str, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds of a learned order; raise ValueError, naming the class `owner`, unless 0 <= low < high <= 2."""
    low, high = bounds
    if not 0 <= low < high <= 2:
        raise ValueError(
            f"{owner}(bounds={bounds}): needs 0 <= low < high <= 2; pass for example (0, 1), or (1, 2) where dy0 is "
            "given."
        )
    return low, high


class NeuralFDE(CaputoEquation):
    """A module from y0 to the solution of D^alpha y = f(t, y) at given times, with a learnable alpha.

    Beside a network that is free to change, an order that is learned is a hyper-parameter and no measurement: the
    network makes up for a wrong order. To measure the order of a process fit a parametric model, by `fit_fde`.

    Args:
        f: The right-hand side, called as f(t, y); its parameters are learned.
        alpha: The order, or orders along some of y0's axes, in (0, 2), their first value where they are learned; or an
            `Alpha`, which then is the order.
        learn_alpha: Whether alpha is a parameter.
        bounds: The interval in which a learned alpha stays; None is (0, 1). Where it reaches above 1 every call needs
            dy0; where 1 lies inside it dy0 must be 0, because the solution jumps by (t - ts[0]) dy0 at alpha = 1, which
            no gradient sees.
        scheme: As in `fdeint`.
        history: As in `fdeint`.
        mesh: As in `fdeint`.
        n_steps: As in `fdeint`.
        adjoint: As in `fdeint`.
        manager: The BackendManager that chooses the kernel of the history; None is the process-wide one.
        device: The device of alpha's parameter.
        dtype: The dtype of alpha's parameter; alpha itself is float64.

    Shape:
        y0 [*shape] -> [times, *shape]; times in the caller's unit.

    Raises:
        ValueError: An argument is out of range, or a learned alpha begins outside its bounds.
        TypeError: An argument has the wrong type.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, for the solver.

    Examples:
        >>> class Field(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(2, 2)
        ...
        ...     def forward(self, t, y):
        ...         return torch.tanh(self.net(y))
        >>> model = NeuralFDE(Field(), alpha=0.8, learn_alpha=True)
        >>> model(torch.zeros(16, 2), torch.linspace(0, 1, 51)).shape
        torch.Size([51, 16, 2])
    """

    def __init__(
        self,
        f: nn.Module,
        alpha: float | Sequence[float] | Alpha = 0.5,
        *,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        scheme: str | Scheme = "predictor_corrector",
        history: str | History = "auto",
        mesh: str | Mesh = "uniform",
        n_steps: int | None = None,
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            scheme=scheme,
            history=history,
            mesh=mesh,
            n_steps=n_steps,
            adjoint=adjoint,
            manager=manager,
            device=device,
            dtype=dtype,
        )
        self.f = errors.function("NeuralFDE", "f", f)

    def forward(
        self,
        y0: S,
        ts: Tensor | Sequence[float],
        dy0: S | None = None,
        *,
        progress: Progress | None = None,
    ) -> S:
        """Return the states at `ts`, time first; arguments as in `fdeint`."""
        self._check_slope(dy0)
        found: S = solved(
            self.f,
            y0,
            ts,
            self.drawn(),
            self.method,
            self.site,
            self.n_steps,
            dy0,
            self.adjoint,
            progress=progress,
        )
        return found

    def _check_slope(self, dy0: Any) -> None:
        """Raise unless dy0, the derivative at the start, is passed where an order may be above 1, and only there."""
        if self.order is None:
            checks.orders("NeuralFDE", self.alpha.numpy(), dy0 is not None)
            return
        low, high = self.order.bounds
        if high <= 1:
            checks.orders("NeuralFDE", np.array([high]), dy0 is not None)
        elif dy0 is None:
            raise ValueError(
                f"NeuralFDE(bounds={(low, high)}): needs the derivative at the start where a learned order may be "
                "above 1; pass dy0 to the call, zeros for a state at rest, or bounds up to 1."
            )
        elif low < 1 and any(bool(bare(part).any()) for part in (dy0 if isinstance(dy0, tuple) else (dy0,))):
            raise ValueError(
                f"NeuralFDE(bounds={(low, high)}): needs dy0 = 0 where 1 lies between the bounds, because the solution "
                "jumps by (t - ts[0]) dy0 at alpha = 1, which no gradient sees; pass zeros, or bounds on one side of 1."
            )


class NeuralFSDE(Ordered):
    """A module from y0 to paths of dX = drift dt + diffusion dZ, or of the Volterra equation below alpha = 1.

    Beside networks that are free to change, an order or a Hurst index that is learned is a hyper-parameter and no
    measurement. To measure one of them fit a parametric model, by `fit_fsde`.

    Args:
        drift: Called as drift(t, y), of y's shape; its parameters are learned.
        diffusion: Called as diffusion(t, y), of the noise type's shape; its parameters are learned.
        noise_type: "additive", "diagonal", "scalar" or "general"; see `StochasticEquation`.
        alpha: The order, or orders along some of y0's axes, in (1/2, 1]; where they are learned their first value,
            below 1; or an `Alpha`, which then is the order.
        learn_alpha: Whether alpha is a parameter.
        bounds: The interval in which a learned alpha stays; None is (1/2, 1).
        noise: The noise that drives the equation; see `fsdeint`.
        learn_hurst: Whether the Hurst index of `noise` is a parameter, whose first value is the noise's.
        hurst_bounds: The interval in which a learned Hurst index stays; None is the noise's bounds, or else the widest
            interval for its kind of noise.
        scheme: As in `fsdeint`.
        weights: As in `fsdeint`.
        interpretation: As in `fsdeint`.
        history: As in `fsdeint`.
        dt: As in `fsdeint`.
        adjoint: As in `fsdeint`.
        manager: The BackendManager that chooses the kernel of the history; None is the process-wide one.
        device: The device of the parameters of alpha and of the Hurst index.
        dtype: The dtype of these parameters; alpha and the Hurst index themselves are float64.

    Shape:
        y0 [*shape] -> [times, *shape]; times in the caller's unit.

    Raises:
        ValueError: An argument is out of range, or noise, noise type, scheme and alpha do not go together.
        TypeError: An argument has the wrong type.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992); Bennedsen, Lunde &
        Pakkanen, Finance Stoch. 21 (2017) 931, for the solver.

    Examples:
        >>> class Field(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(2, 2)
        ...
        ...     def forward(self, t, y):
        ...         return torch.tanh(self.net(y))
        >>> model = NeuralFSDE(Field(), Field(), alpha=0.8, learn_alpha=True)
        >>> model(torch.zeros(16, 2), torch.linspace(0, 1, 51)).shape
        torch.Size([51, 16, 2])
    """

    def __init__(
        self,
        drift: nn.Module,
        diffusion: nn.Module,
        noise_type: str = "diagonal",
        *,
        alpha: float | Sequence[float] | Alpha = 1.0,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        noise: Noise = Brownian(),  # noqa: B008  a frozen value
        learn_hurst: bool = False,
        hurst_bounds: tuple[float, float] | None = None,
        scheme: str | StochasticScheme = "euler",
        weights: str | VolterraWeights = "hybrid",
        interpretation: str = "ito",
        history: str | History = "auto",
        dt: float | None = None,
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.drift = errors.function(owner, "drift", drift)
        self.diffusion = errors.function(owner, "diffusion", diffusion)
        self.noise_type = errors.one_of(owner, "noise_type", noise_type, NOISE_TYPES)
        self.method = StochasticMethod.of(owner, noise, scheme, weights, interpretation, history)
        self.dt = None if dt is None else errors.positive_step(owner, dt)
        self.adjoint = errors.claim(owner, "adjoint", adjoint)
        self.learn_hurst = errors.claim(owner, "learn_hurst", learn_hurst)
        errors.claim(owner, "learn_alpha", learn_alpha)
        check_place(owner, device, dtype)
        self._fixed, self.order = stochastic_order(owner, alpha, learn_alpha, bounds, device, dtype)
        self.learn_alpha = self.order is not None
        self.index: Alpha | None = None
        if self.learn_hurst:
            first, self._hurst_bounds = _hurst_of(owner, noise, hurst_bounds)
            made: dict[str, Any] = {"owner": owner, "device": device, "dtype": dtype}
            self.index = Alpha(first.tolist(), self._hurst_bounds, first.shape, **made)
        self._present().rule(self.noise_type, 0.75 if self._fixed is None else min(np.ravel(self._fixed)))
        self.site = given_manager(owner, manager).site(self.method.history.op, "torch")

    @property
    def hurst(self) -> Tensor | None:
        """The present value of the learned Hurst index, float64; None where it is not learned."""
        return None if self.index is None else self.index()

    def forward(
        self,
        y0: S,
        ts: Tensor | Sequence[float],
        *,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> S:
        """Return a path for each state of y0 at `ts`, time first; arguments as in `fsdeint`."""
        sde = SDE(self.drift, self.diffusion, self.noise_type)
        options = (self.dt, self.adjoint, generator, progress)
        found: S = integrated(sde, y0, ts, self.drawn(), self._present(), self.site, *options)
        return found

    def ensemble(
        self,
        y0: Tensor,
        ts: Tensor | Sequence[float],
        paths: int,
        *,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Return several paths from each state of y0, [times, paths, *shape].

        Args:
            y0: The state, or a batch of states, at the start; a tensor.
            ts: As in `fsdeint`.
            paths: How many paths from each state.
            generator: As in `fsdeint`.
            progress: As in `fsdeint`.
        """
        count = errors.count("NeuralFSDE.ensemble", "paths", paths)
        return self(y0.expand(count, *y0.shape), ts, generator=generator, progress=progress)

    def _present(self) -> StochasticMethod:
        """Return the `StochasticMethod` of the next solve: its noise has the present value of a learned Hurst index."""
        if self.index is None:
            return self.method
        noise: Any = self.method.noise
        return dataclasses.replace(
            self.method, noise=dataclasses.replace(noise, hurst=self.index(), bounds=self._hurst_bounds)
        )

    def extra_repr(self) -> str:
        order = "learn_alpha=True" if self.learn_alpha else f"alpha={self.alpha.tolist()}"
        method, noise = self.method, "learn_hurst=True, " if self.learn_hurst else ""
        return (
            f"{self.noise_type!r}, {order}, noise={method.noise.name!r}, {noise}scheme={method.scheme.name!r}, "
            f"interpretation={method.interpretation!r}, dt={self.dt}"
        )


def stochastic_order(
    owner: str,
    alpha: float | Sequence[float] | Alpha,
    learn_alpha: bool,
    bounds: tuple[float, float] | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Any, Alpha | None]:
    """Return the order of a stochastic equation: (numbers, None) where it is fixed, (None, `Alpha`) if it is learned.

    Args:
        owner: Name of the class whose order it is, for messages.
        alpha: The order or orders, in (1/2, 1], below 1 where they are learned; or an `Alpha`, which then is the order.
        learn_alpha: Whether orders that are numbers are to be learned.
        bounds: The interval in which a learned order stays; None is (1/2, 1).
        device: The device of a new `Alpha`.
        dtype: The dtype of a new `Alpha`.

    Raises:
        TypeError: alpha is a tensor.
        ValueError: alpha or bounds are out of range.
    """
    if isinstance(alpha, Alpha):
        stochastic_bounds(owner, alpha.bounds_for(owner, bounds, alpha.shape))
        return None, alpha
    values = order_numbers(owner, alpha)
    check_stochastic_orders(owner, alpha, values)
    if not learn_alpha:
        return values.tolist(), None
    within = stochastic_bounds(owner, bounds)
    return None, Alpha(values.tolist(), within, values.shape, owner=owner, device=device, dtype=dtype)


def _hurst_of(
    owner: str, noise: Noise, hurst_bounds: tuple[float, float] | None
) -> tuple[np.ndarray, tuple[float, float]]:
    """Return the first value of a learned Hurst index, which is that of `noise`, and its bounds.

    `hurst_bounds` are the caller's; None takes the noise's own. `owner` is the class that error messages name.
    """
    value = getattr(noise, "hurst", None)
    if value is None:
        raise ValueError(
            f"{owner}(learn_hurst=True): needs a noise that has a Hurst index, and {type(noise).__name__} has none; "
            "pass for example noise=FractionalBrownian(0.3)."
        )
    if isinstance(value, Tensor):
        raise ValueError(
            f"{owner}(learn_hurst=True): needs a noise whose Hurst index is a number, the first value; pass for "
            "example noise=FractionalBrownian(0.3)."
        )
    widest: tuple[float, float] = getattr(noise, "widest", (0.0, 1.0))
    own: tuple[float, float] | None = getattr(noise, "bounds", None)
    bounds = errors.pair(
        owner, "hurst_bounds", (own or widest) if hurst_bounds is None else hurst_bounds, "(0.05, 0.5)"
    )
    if not 0 <= bounds[0] < bounds[1] <= 1:
        raise ValueError(f"{owner}(hurst_bounds={bounds}): needs 0 <= low < high <= 1; pass for example (0.05, 0.5).")
    first = np.asarray(value, dtype=np.float64)
    if not ((first > bounds[0]) & (first < bounds[1])).all():
        raise ValueError(
            f"{owner}(hurst_bounds={bounds}): needs bounds around the noise's Hurst index {value}; pass others, or "
            "begin inside."
        )
    return first, bounds


Forcing = Callable[[Tensor, Tensor], Tensor | float]


class MultiTerm(Terms):
    """The right-hand side of sum over a of c_a D^a y = forcing(t, y), Caputo's derivatives.

    The state has one axis more than y, at its end, with y and its derivatives of the orders `derivatives`: those of the
    terms and every whole number below the highest. Each is the derivative of the one before it, of order `alpha` of 0
    to 1, so that `fdeint` solves it with one alpha for each entry.

    Args:
        terms: The coefficients c_a by order a: orders from 0 on, coefficients that are numbers or tensors, that of the
            highest order not 0.
        forcing: Called as forcing(t, y); returns a tensor like y, or a number or tensor that broadcasts to y; None
            is 0.

    Raises:
        ValueError: There is no order above 0, or one is negative or not finite.

    Source: Diethelm & Ford, BIT 42 (2002) 490; Edwards, Ford & Simpson, J. Comput. Appl. Math. 148 (2002) 401.

    Examples:
        >>> # by which y is t**2
        >>> forcing = lambda t, y: 2 + 2 * (t / torch.pi) ** 0.5 + t**2 / 2
        >>> equation = MultiTerm({2: 1.0, 1.5: 0.5, 0: 0.5}, forcing)  # Bagley and Torvik's
        >>> rest = torch.zeros(1, dtype=torch.float64)
        >>> y = fdeint(
        ...     equation, equation.state(rest, rest), np.linspace(0, 1, 201), equation.alpha
        ... )[..., 0]
        >>> round(y[-1].item(), 3)
        1.0
    """

    def __init__(self, terms: Mapping[float, float | Tensor], forcing: Forcing | None = None):
        super().__init__(terms)
        self.forcing = None if forcing is None else errors.function("MultiTerm", "forcing", forcing)

    @property
    def alpha(self) -> Tensor:
        """The order of each entry of the state, [entries], float64."""
        return torch.from_numpy(self.orders)

    def state(self, *initial: Tensor) -> Tensor:
        """Return the state of the system at the start, [*y.shape, entries].

        Args:
            initial: y and its derivatives of whole order below the highest order, tensors of one shape.

        Raises:
            ValueError: There are more or fewer of them.
        """
        return torch.stack(self.entries(initial, torch.zeros_like(initial[0]) if initial else None), -1)

    def __call__(self, t: Tensor, x: Tensor) -> Tensor:
        """Return the right-hand side of the system for the state x: each entry's derivative of its own order."""
        entries: Sequence[Tensor] = x.unbind(-1)
        y = entries[0]
        return torch.stack(
            self.slopes(entries, torch.zeros_like(y) if self.forcing is None else self._forced(t, y)), -1
        )

    def _forced(self, t: Tensor, y: Tensor) -> Tensor:
        assert self.forcing is not None, "there is one"
        found = self.forcing(t, y)
        if isinstance(found, Tensor):
            found = found.to(y.dtype)
        else:  # torch's default dtype would be float32
            found = torch.as_tensor(found, dtype=y.dtype, device=y.device)
        self.check_forcing(tuple(found.shape), tuple(y.shape), f"at t={float(t):g} ")
        return found.expand(y.shape)
