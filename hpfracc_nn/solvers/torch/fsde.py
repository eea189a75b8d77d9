"""`fsdeint`: stochastic differential equations and stochastic Volterra equations for tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn.fractional.torch.tracing import has_tangent, is_traced, uncompiled
from hpfracc_nn.selection import BackendManager, Plan, Site, given_manager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.sde import (
    OWNER,
    StochasticEquation,
    StochasticMethod,
    check_noise,
    check_orders,
    mesh_of,
    noise_type_of,
)
from hpfracc_nn.solvers.sde_schemes import StochasticScheme, one_step_of
from hpfracc_nn.solvers.torch import kernels  # noqa: F401  kernels are registered on import
from hpfracc_nn.solvers.torch.adjoint import recorded_blocks, solved, trainable
from hpfracc_nn.solvers.torch.blocks import (
    Coefficients,
    NoiseRows,
    OneStepBlocks,
    Solve,
    Tensors,
    VolterraBlocks,
    Weighting,
    check_structure,
    diffusion_shape,
)
from hpfracc_nn.solvers.torch.integrate import Problem, Progress
from hpfracc_nn.solvers.torch.noise import NoisePath, check_generator, learned
from hpfracc_nn.solvers.torch.state import (
    Casts,
    S,
    State,
    check_untraced,
    checked_state,
    layout_of,
    orders_of,
    present,
    resolution,
    times_of,
    without,
)
from hpfracc_nn.solvers.volterra import OfRates, VolterraWeights

_method = lru_cache(maxsize=64)(StochasticMethod.of)
_BELOW = float(np.nextafter(1.0, 0.0))


class StochasticCall:
    """One call of `fsdeint`: its arguments, checked and laid out.

    Raises:
        ValueError: An argument is out of range, or equation, noise, scheme and orders do not go together.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        sde: StochasticEquation,
        y0: State,
        ts: Any,
        alpha: float | Tensor,
        method: StochasticMethod,
        dt: float | None,
        casts: Casts | None,
    ):
        noise_type = noise_type_of(sde)
        check_noise(OWNER, sde, method.noise)
        self.method, self.sde = method, sde
        self.y0 = checked_state(OWNER, "y0", y0)
        self.like = self.y0[0] if isinstance(self.y0, tuple) else self.y0
        self.orders = orders_of(OWNER, alpha)
        check_orders(self.orders)
        given = alpha if isinstance(alpha, Tensor) else None
        self.layout = layout_of(self.y0, torch.Size(()) if given is None else given.shape, OWNER)
        self.learns = given is not None and _is_differentiated(given)
        self.has_memory = self.learns or bool((self.orders < 1).any())
        self.alpha = None if given is None else given.to(self.like.device, torch.float64).reshape(-1)
        # An order of 1 whose gradient is wanted is solved like orders below 1, with a memory.
        method.rule(noise_type, min(float(self.orders.min()), _BELOW if self.has_memory else 1.0))
        outputs = checks.increasing(OWNER, times_of(OWNER, ts))
        self.first = float(outputs[0])
        self.elapsed, self.outputs = mesh_of(outputs, resolution(ts), dt)
        shape = diffusion_shape(sde, self.y0, self.first, casts)
        self.coefficients = Coefficients(sde, self.layout, self.first + self.elapsed, self.like.detach(), casts, shape)

    def solved(
        self,
        site: Site,
        adjoint: bool,
        generator: torch.Generator | None,
        params: Iterable[Tensor] | None,
        progress: Progress | None,
    ) -> State:
        """Return the states at the output times, [times, *shape of y0], a tuple where y0 is one.

        `site` is the call site that picks the plan of the history; the other arguments are those of `fsdeint`.
        """
        check_generator(OWNER, generator, self.like.device)
        z0 = self.layout.ravel(self.y0)
        is_seen = is_traced(z0, ()) or forward_ad._current_level >= 0
        if not is_seen:
            check_structure(self.coefficients, z0, self.method.scheme.needs_diagonal)
        weighting = self._weighting(site, progress) if self.has_memory else None
        is_plain = is_seen or (torch.is_grad_enabled() and not adjoint)
        solve = self._solve(generator, progress, is_plain)
        if not is_seen and not torch.is_grad_enabled():
            states = solved(solve, weighting, _plan(weighting, False), z0)
        elif is_plain:
            states = self._plain(solve, weighting, z0)
        else:
            states = self._recorded(solve, weighting, z0, params)
        return self.layout.unravel(states)

    def _plain(self, solve: Solve, weighting: Weighting | None, z0: Tensor) -> Tensor:
        shared: Tensors = ()
        past: Tensors = ()
        if weighting is not None:
            alpha = torch.as_tensor(self.orders, device=z0.device) if self.alpha is None else self.alpha
            shared, past = weighting.traced(alpha, z0)
        return solve.plain(z0, shared, past)

    def _recorded(
        self, solve: Solve, weighting: Weighting | None, z0: Tensor, params: Iterable[Tensor] | None
    ) -> Tensor:
        found: dict[int, Tensor] = {}
        read: dict[int, Tensor] = {}
        given = tuple(params or ())
        for each in (self.coefficients.drift, self.coefficients.diffusion):
            wanted, used = trainable(each, z0, given)
            found |= {id(leaf): leaf for leaf in wanted}
            read |= {id(tensor): tensor for tensor in used}
            solve.makes_leaves |= each.makes_leaves
        noise = solve.noise
        if learned(self.method.noise):
            noise.whole = noise.path.whole()
        else:
            noise.has_gradients = False
        parameters = tuple(found.values())
        tensors = (z0, self.alpha, noise.whole, *parameters)
        if not [each for each in tensors if each is not None and each.requires_grad]:
            return solved(solve, weighting, _plan(weighting, False), z0)
        functions, plan = (self.coefficients.drift.f, self.coefficients.diffusion.f), _plan(weighting, True)
        holders = functions, tuple(read.values())
        return recorded_blocks(solve, weighting, plan, z0, self.alpha, parameters, *holders)

    def _weighting(self, site: Site, progress: Progress | None) -> Weighting:
        weights, is_fixed = self.method.weights, not self.learns
        problem = Problem(
            self.coefficients.drift,
            cast(Scheme, OfRates(weights)),  # on a uniform mesh a scheme's weights alone are used
            self.method.history,
            site,
            self.orders,
            self.elapsed,
            True,
            is_fixed,
            progress,
        )
        return Weighting(weights, problem)

    def _solve(self, generator: torch.Generator | None, progress: Progress | None, is_plain: bool) -> Solve:
        c, method, n_steps = self.coefficients, self.method, self.elapsed.size - 1
        numbers = self.layout.shape.numel()
        is_double = method.weights.has_residual if self.has_memory else method.scheme.streams > 1
        path = NoisePath(
            method.noise,
            n_steps,
            (2, *c.shape) if is_double else tuple(c.shape),
            dt=c.dt,
            generator=generator,
            dtype=self.like.dtype,
            device=self.like.device,
        )
        steps: VolterraBlocks | OneStepBlocks
        if self.has_memory:
            steps = VolterraBlocks(c, method.weights, n_steps, numbers, is_plain)
        else:
            steps = OneStepBlocks(one_step_of(method.scheme, c, method.interpretation), n_steps, numbers)
        limits = method.limits(self.orders if self.has_memory else None, self.elapsed, self.first)
        times = self.first + self.elapsed
        return Solve(
            steps, NoiseRows(path), n_steps, self.outputs, times, c.drift.eps, progress, limits=limits, drift=c.drift
        )


def _is_differentiated(alpha: Tensor) -> bool:
    """Return whether a derivative in alpha is taken: by backpropagation, forward mode or torch.func."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(alpha)
    return is_wrapped or alpha.requires_grad or has_tangent(alpha)


def _plan(weighting: Weighting | None, needs_gradient: bool) -> Plan | None:
    return None if weighting is None else weighting.problem.pick(needs_gradient)


def fsdeint(
    sde: StochasticEquation,
    y0: S,
    ts: Tensor | Sequence[float] | np.ndarray,
    *,
    alpha: float | Tensor = 1.0,
    noise: Noise = Brownian(),  # noqa: B008  a frozen value
    scheme: str | StochasticScheme = "euler",
    weights: str | VolterraWeights = "hybrid",
    interpretation: str = "ito",
    history: str | History = "auto",
    adjoint: bool = True,
    generator: torch.Generator | None = None,
    dt: float | None = None,
    progress: Progress | None = None,
    params: Iterable[Tensor] | None = None,
    manager: BackendManager | None = None,
) -> S:
    """Return a path of a stochastic equation at the times `ts`, one for each state of y0.

    At alpha = 1 the equation is dX = f dt + g dZ. For 1/2 < alpha < 1 it is the stochastic Volterra equation

        X(t) = x0 + integral of m(t - s) [f ds + g dW] from ts[0] to t,
        m(t) = t**(alpha - 1) / Gamma(alpha),

    which at alpha = 1 is the same. The table in `hpfracc_nn.solvers.rules` says which noises, schemes and orders go
    together, and the strong orders. Backwards, blocks of steps are replayed: memory is the states at `ts` and a state
    for each block at alpha = 1, two states for each step below, and f and g are evaluated once more.

    Args:
        sde: An object with methods drift(t, y), of y's shape, and diffusion(t, y), and with a noise_type: "additive",
            "diagonal", "scalar" or "general"; see `StochasticEquation`. `SDE` makes such an object of two functions.
        y0: The state at ts[0], float32 or float64: a tensor, or a tuple of tensors. Noise that is not diagonal takes
            its last axis for the state and those before for a batch.
        ts: Increasing times, in the caller's unit.
        alpha: In (1/2, 1]: a float, or a tensor, which may be learned: one number, or one for each entry along some of
            y0's axes. An alpha of 1 that requires a gradient is solved with weights, as are others.
        noise: The noise Z that drives the equation: `Brownian()`, or another `Noise`.
        scheme: "euler", "milstein", "heun", "srk", "reversible_heun", or a `StochasticScheme`.
        weights: Below alpha = 1: "hybrid", "average", "isometry", "left", or a `VolterraWeights`.
        interpretation: The sense of the stochastic integral where the diffusion depends on the state, "ito" or
            "stratonovich"; against noise that is smoother or rougher than Brownian motion the latter is the integral
            along each path.
        history: Below alpha = 1, how the past is kept; as in `fdeint`.
        adjoint: Whether gradients come from the exact adjoint of the scheme; else by plain backpropagation through
            all steps, which second derivatives and transforms of `torch.func` need.
        generator: The source of the noise's random numbers; None is the default generator of y0's device.
        dt: The step size; all times in `ts` must be multiples of it from ts[0] on. None takes the steps of `ts`.
        progress: Called as progress(steps done, steps in all) after each block of steps.
        params: Tensors that drift or diffusion read and whose gradients are wanted, as far as the solver cannot find
            them: they are neither leaves that drift or diffusion hold, nor parameters of a module that they hold, and
            are not used at the first step.
        manager: The BackendManager that chooses the kernel of the history; None is the process-wide one.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a tuple of such.

    Raises:
        ValueError: An argument is out of range, equation, noise, scheme and alpha do not go together, or drift or
            diffusion return a wrong shape.
        TypeError: An argument has the wrong type.
        FloatingPointError: The solution is not finite, or explodes.
        LookupError: No kernel that the manager allows can keep this history.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992); Bennedsen, Lunde &
        Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> ornstein_uhlenbeck = SDE(
        ...     lambda t, y: -y, lambda t, y: 0.1 * torch.ones_like(y), "additive"
        ... )
        >>> x = fsdeint(
        ...     ornstein_uhlenbeck, torch.ones(1000), torch.linspace(0, 1, 101), alpha=0.7
        ... )
        >>> round(x[-1].mean().item(), 2), round(float(mittag_leffler(-1.0, 0.7)), 2)
        (0.4, 0.4)
    """
    are_names = type(scheme) is type(weights) is type(interpretation) is type(history) is str
    method_of = _method if are_names and type(noise) is Brownian else StochasticMethod.of
    method = method_of("fsdeint", noise, scheme, weights, interpretation, history)
    site = given_manager("fsdeint", manager).shared_site(method.history.op, "torch", "fsdeint")
    found: S = integrated(sde, y0, ts, alpha, method, site, dt, adjoint, generator, progress, params)
    return found


@uncompiled
def integrated(
    sde: StochasticEquation,
    y0: State,
    ts: Any,
    alpha: float | Tensor,
    method: StochasticMethod,
    site: Site,
    dt: float | None = None,
    adjoint: bool = True,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    params: Iterable[Tensor] | None = None,
) -> Any:
    """Return what `fsdeint` returns, for a `StochasticMethod` and a call site that the caller keeps.

    Under autocast drift and diffusion run as they would elsewhere and their results are cast to the state's dtype.
    """
    check_untraced("fsdeint", "y0")
    like = y0[0] if isinstance(y0, tuple | list) and y0 else y0
    kind = like.device.type if isinstance(like, Tensor) else "cpu"
    casts = present(kind)
    with nullcontext() if casts is None else without(kind):
        call = StochasticCall(sde, y0, ts, alpha, method, dt, casts)
        return call.solved(site, adjoint, generator, params, progress)
