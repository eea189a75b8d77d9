"""The arguments of `fsdeint`: what is solved, checked and laid out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn.fractional.torch.tracing import has_tangent, is_traced
from hpfracc_nn.selection import Plan, Site
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.schemes.one_step import one_step_of
from hpfracc_nn.solvers.schemes.volterra import OfRates
from hpfracc_nn.solvers.sde import StochasticEquation
from hpfracc_nn.solvers.stochastic import OWNER, StochasticMethod, check_noise, check_orders, mesh_of, noise_type_of
from hpfracc_nn.solvers.torch import kernels, replay  # noqa: F401  kernels are registered on import
from hpfracc_nn.solvers.torch.arguments import checked_state, orders_of, resolution, times_of
from hpfracc_nn.solvers.torch.blocks import NoiseRows, Solve, Tensors
from hpfracc_nn.solvers.torch.casts import Casts
from hpfracc_nn.solvers.torch.coefficients import Coefficients, check_structure, diffusion_shape
from hpfracc_nn.solvers.torch.noise import NoisePath, check_generator, learned
from hpfracc_nn.solvers.torch.one_step_blocks import OneStepBlocks
from hpfracc_nn.solvers.torch.packing import State, packing_of
from hpfracc_nn.solvers.torch.parameters import discovered
from hpfracc_nn.solvers.torch.problem import Problem, Progress
from hpfracc_nn.solvers.torch.volterra import VolterraBlocks, Weighting

_BELOW = float(np.nextafter(1.0, 0.0))


class StochasticCall:
    """The arguments of one call, checked and laid out.

    Raises:
        ValueError: One is out of range, or they do not go together.
        TypeError: One has the wrong type.
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
        self.packing = packing_of(self.y0, torch.Size(()) if given is None else given.shape, OWNER)
        self.learns = given is not None and _is_differentiated(given)
        self.has_memory = self.learns or bool((self.orders < 1).any())
        self.alpha = None if given is None else given.to(self.like.device, torch.float64).reshape(-1)
        # An order of 1 whose gradient is wanted is solved as those below are.
        method.rule(noise_type, min(float(self.orders.min()), _BELOW if self.has_memory else 1.0))
        outputs = checks.increasing(OWNER, times_of(OWNER, ts))
        self.first = float(outputs[0])
        self.elapsed, self.outputs = mesh_of(outputs, resolution(ts), dt)
        shape = diffusion_shape(sde, self.y0, self.first, casts)
        self.coefficients = Coefficients(sde, self.packing, self.first + self.elapsed, self.like.detach(), casts, shape)

    def solved(
        self,
        site: Site,
        adjoint: bool,
        generator: torch.Generator | None,
        params: Iterable[Tensor] | None,
        progress: Progress | None,
    ) -> State:
        """Return the states at the output times."""
        check_generator(OWNER, generator, self.like.device)
        z0 = self.packing.joined(self.y0)
        is_seen = is_traced(z0, ()) or forward_ad._current_level >= 0
        if not is_seen:
            check_structure(self.coefficients, z0, self.method.scheme.needs_diagonal)
        weighting = self._weighting(site, progress) if self.has_memory else None
        is_plain = is_seen or (torch.is_grad_enabled() and not adjoint)
        solve = self._solve(generator, progress, is_plain)
        if not is_seen and not torch.is_grad_enabled():
            states = replay.solved(solve, weighting, _plan(weighting, False), z0)
        elif is_plain:
            states = self._plain(solve, weighting, z0)
        else:
            states = self._recorded(solve, weighting, z0, params)
        return self.packing.parted(states)

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
            wanted, used = discovered(each, z0, given)
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
        if not any(each is not None and each.requires_grad for each in tensors):
            return replay.solved(solve, weighting, _plan(weighting, False), z0)
        functions, plan = (self.coefficients.drift.f, self.coefficients.diffusion.f), _plan(weighting, True)
        return replay.recorded(solve, weighting, plan, z0, self.alpha, parameters, functions, tuple(read.values()))

    def _weighting(self, site: Site, progress: Progress | None) -> Weighting:
        weights, is_fixed = self.method.weights, not self.learns
        problem = Problem(
            self.coefficients.drift,
            cast(Scheme, OfRates(weights)),  # of a scheme, a uniform mesh asks for the weights alone
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
        numbers = self.packing.shape.numel()
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
        return Solve(steps, NoiseRows(path), n_steps, self.outputs, times, progress, limits=limits, drift=c.drift)


def _is_differentiated(alpha: Tensor) -> bool:
    """Whether a derivative by alpha is taken, in whatever mode."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(alpha)
    return is_wrapped or alpha.requires_grad or has_tangent(alpha)


def _plan(weighting: Weighting | None, needs_gradient: bool) -> Plan | None:
    return None if weighting is None else weighting.problem.pick(needs_gradient)
