"""A stochastic solve in blocks of steps, as its exact adjoint, which replays one block after the other, needs it.

Forward, no graph is kept: of each block only what it begins with, and of its noise what it takes to draw it again.
Backwards, a block is run once more with a graph, and one call of autograd propagates the cotangents through its steps.
So a solve costs one evaluation more than plain backpropagation and the memory of one block, and its gradient is that of
the numbers that were computed, for every scheme.

With a memory, the steps of a stochastic Volterra equation are

    X_n = x0 + sum over j < n of h w_(n-j) Z_j + sigma g_(n-1) zeta_(n-1),        Z_j = f_j + g_j dW_j / h.

Z_j is what step j adds to the past. The history's kernel adds up, for a block, the Z_j of earlier blocks; those of the
block's own steps are added up as the steps are taken. The adjoint's memory is the same history run backwards on the
cotangents of X_n.

Shapes: [*shape] a state, or the noise of one step; steps: those of a block; sets of weights, 2 where drift and noise
have their own. The carry is what one block passes to the next beside the memory.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import is_traced
from hpfracc_nn.selection import Plan
from hpfracc_nn.solvers import volterra
from hpfracc_nn.solvers.explosions import WINDOW, Limits
from hpfracc_nn.solvers.sde import (
    NEARBY,
    OWNER,
    StochasticEquation,
    additive_message,
    diagonal_message,
    fitting_shape,
    joined_shape,
    not_finite,
)
from hpfracc_nn.solvers.sde_schemes import OneStep
from hpfracc_nn.solvers.torch.integrate import Problem, Progress, Watch, by_lag, largest
from hpfracc_nn.solvers.torch.memory import BufferedSums, KnownSums, Memory, OwnSums, Toeplitz, TrackedSums, toeplitz
from hpfracc_nn.solvers.torch.noise import NoisePath
from hpfracc_nn.solvers.torch.state import Casts, Field, Layout, Signature, State, is_finite

_ROUNDING = 1e3  # times eps: the difference that two ways to compute one product may have


class Coefficients:
    """Drift f and diffusion g of one solve, as its steps evaluate them: see `sde_schemes.Coefficients`.

    Args:
        sde: The user's equation.
        layout: How its states are laid out.
        times: The times of the mesh, [n_steps + 1].
        like: A tensor of the states' dtype and device.
        casts: The autocast that the equation runs under, or None.
        diffusion: The shape of g.

    Attributes:
        drift: f, called as drift(n, y) for step n.
        diffusion: g, called as diffusion(n, y).
        dt: The step size, in the caller's time unit.
        step: `dt` as a tensor, which saves making one at each product.
        shape: The shape of the noise of one step.
    """

    def __init__(
        self,
        sde: StochasticEquation,
        layout: Layout,
        times: np.ndarray,
        like: Tensor,
        casts: Casts | None,
        diffusion: torch.Size,
    ):
        self._given = sde, layout, times, like, casts, diffusion
        self.layout, self.noise_type = layout, sde.noise_type
        self.dt = float(times[-1] - times[0]) / (times.size - 1)
        if self.dt > torch.finfo(like.dtype).max:
            raise ValueError(
                f"{OWNER}(dt={self.dt:g}): needs steps that {like.dtype} can hold; pass times in another unit."
            )
        self.step = torch.full((), self.dt, dtype=like.dtype, device=like.device)
        self.drift = Field(sde.drift, layout, times, like, casts, OWNER, "sde.drift")
        self.diffusion = Field(sde.diffusion, layout, times, like, casts, OWNER, "sde.diffusion", diffusion)
        self._is_elementwise = len(diffusion) == len(layout.shape)
        self.shape = layout.shape if self._is_elementwise else torch.Size((*diffusion[:-2], diffusion[-1]))

    def shifted(self, part: float) -> Coefficients:
        """Return the coefficients evaluated `part` of a step later: their step n is at time t_n + part dt."""
        sde, layout, times, like, casts, diffusion = self._given
        return Coefficients(sde, layout, times + part * self.dt, like, casts, diffusion)

    def with_slope(self, n: int, y: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Return g, and g g' times `factor`, of a diagonal diffusion, whose Jacobian is its own transpose."""
        if is_traced(y, (factor,)):  # torch.autograd.grad does not take tensors of transforms or tracers
            g, pulled = torch.func.vjp(lambda z: self.diffusion(n, z), y)  # type: ignore[misc]  # three, with aux
            return g, pulled(g * factor)[0]
        is_recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            # A view: where the diffusion holds y itself, such as the start, the slope is to be taken in z alone.
            z = y.view_as(y) if y.requires_grad else y.detach().requires_grad_()
            g = self.diffusion(n, z)
            if not g.requires_grad:
                return g, torch.zeros_like(y)
            (found,) = torch.autograd.grad(g, z, g * factor, create_graph=is_recorded, allow_unused=True)
        g = g if is_recorded else g.detach()
        return g, torch.zeros_like(y) if found is None else found

    def applied(self, g: Tensor, noise: Tensor) -> Tensor:
        """Return g times the noise of a step, a tensor of the state's shape."""
        if self._is_elementwise:
            return g * noise
        if self.noise_type == "scalar":
            return g.squeeze(-1) * noise
        return torch.matmul(g, noise.unsqueeze(-1)).squeeze(-1)

    def moved(self, x: Tensor, g: Tensor, noise: Tensor, room: Tensor | None = None) -> Tensor:
        """Return x + g * noise, x of the state's shape; the last bit may differ from that of a product and a sum.

        The result may be written to the buffer `room`, if that is a tensor.
        """
        if self._is_elementwise:
            return torch.addcmul(x, g, noise, out=room)
        return x + self.applied(g, noise)


def diffusion_shape(sde: StochasticEquation, y0: State, t0: float, casts: Casts | None) -> torch.Size:
    """Return the shape of what the diffusion returns at the start, joined into one axis where states are tuples.

    Raises:
        TypeError: The diffusion returns no tensor.
        ValueError: The shape is not one that the noise type allows.
    """
    like = y0[0] if isinstance(y0, tuple) else y0
    t = torch.as_tensor(t0, dtype=like.dtype, device=like.device)
    with torch.no_grad(), nullcontext() if casts is None else casts.renewed():
        # A copy: a diffusion that writes to its argument is refused later, and must not change the caller's tensor.
        found = sde.diffusion(t, tuple(part.clone() for part in y0) if isinstance(y0, tuple) else y0.clone())
    if isinstance(y0, tuple):
        parts = [tuple(part.shape) for part in found] if isinstance(found, tuple | list) else type(found).__name__
        return torch.Size(joined_shape(sde.noise_type, parts, [tuple(part.shape) for part in y0]))
    if not isinstance(found, Tensor):
        raise TypeError(f"{OWNER}(sde.diffusion): needs a tensor; it returned {type(found).__name__}.")
    return torch.Size(fitting_shape(sde.noise_type, found.shape, y0.shape))


def check_structure(coefficients: Coefficients, z0: Tensor, needs_diagonal: bool) -> None:
    """Raise ValueError unless the diffusion depends on the state as its noise type says.

    It is tested at the start, at a state nearby, since a slope may vanish at the start alone, and at that state at the
    end. A diffusion declared additive that depends on y without a slope is recognised by its values at the first two
    points; a threshold elsewhere is not seen. Random numbers that the diffusion draws by itself are the same in each
    test, and afterwards those that it would draw without the tests.

    Args:
        coefficients: Drift and diffusion.
        z0: The state at the start.
        needs_diagonal: Whether the scheme relies on a diagonal diffusion.

    Raises:
        ValueError: The diffusion depends on y where it is additive, or on other entries of y where it has to be
            diagonal.
    """
    noise_type = coefficients.noise_type
    if noise_type != "additive" and not (needs_diagonal and noise_type == "diagonal"):
        return
    z0 = z0.detach()
    # The nearby state is larger, each entry by another part: prices, variances and rates stay in their domain.
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
                check(g, z, t, field.eps)
        values.append(g.detach())
    is_told = noise_type == "additive" and not is_traced(values[0], ())  # under vmap there is no single value
    if is_told and _differ(values[0], values[1], field.eps):
        raise ValueError(additive_message(f"at t={float(field.times[0]):g}"))


def _check_additive(g: Tensor, z: Tensor, t: Tensor, eps: float) -> None:
    direction = torch.cos(torch.arange(1.0, g.numel() + 1)).to(g).view_as(g)
    (found,) = torch.autograd.grad(g, z, direction, allow_unused=True)
    if found is not None and bool(((found != 0) & found.isfinite()).any()):
        raise ValueError(additive_message(f"at t={float(t):g}"))


def _differ(one: Tensor, other: Tensor, eps: float) -> bool:
    """Return whether two tensors differ by more than rounding, of precision `eps`, where both are finite."""
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


Tensors = tuple[Tensor, ...]

_NUMBERS = 1 << 16  # entries of all states of a block: so many stay in the CPU's cache, where each step reads them
_SHORTEST, _LONGEST = 16, 128  # steps of a block, whose graph is held when it is replayed


def steps_of_block(numbers: int) -> int:
    """Return how many steps a block has, for states of `numbers` entries; a power of two.

    A block costs some ten calls of torch forward and again backward, beside its steps.
    """
    most = min(_LONGEST, max(_SHORTEST, _NUMBERS // max(1, numbers)))
    return 1 << (most.bit_length() - 1)


@dataclass
class Advance:
    """The results of a block of steps.

    Attributes:
        states: The state of each of the block's steps, [*shape].
        carry: The carry that the next block begins with; empty after the last step.
        values: What each of the block's steps adds to the past, Z_j, [*shape], or [sets, *shape] where there are
            several sets of weights; empty where there is no memory.
        sums: The sum over the past of each of the block's steps, [*shape]; empty where there is no memory.
    """

    states: list[Tensor]
    carry: Tensors
    values: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)


class Steps(Protocol):
    """The steps of a scheme, taken in blocks.

    Attributes:
        block: The number of steps of a block.
    """

    block: int

    def run(self, first: int, last: int, carry: Tensors, shared: Tensors, past: Tensors, noise: Tensor) -> Advance:
        """Take the steps of one block; return the states of steps first to last - 1 and what the block passes on.

        Args:
            first: The first step of the block, a multiple of `block`.
            last: The step after the block.
            carry: The carry of the block before; for the first block, the state at the start alone.
            shared: Tensors that all blocks read and whose gradient may be wanted.
            past: The sums of the block's steps over the steps before the block, and the weights of the block's own
                steps by lag; empty where there is no memory.
            noise: The noise of the steps from `first` on, [steps, *shape].
        """
        ...


class BlockMemory(Protocol):
    """The past of a stochastic solve, which grows by blocks of steps."""

    def opened(self, first: int, last: int) -> Tensors:
        """Return the sums of steps first to last - 1 over all steps before `first`, and the block's weights by lag.

        The sums are [steps, *shape], the weights [steps, sets, *varying] with `varying` of the layout. Without a memory
        the result is empty.
        """
        ...

    def add(self, first: int, values: list[Tensor]) -> None:
        """Add to the past the `values` of the block's steps from `first` on, one tensor for each step."""
        ...


class Forgetful:
    """The `BlockMemory` of a solve without a memory, alpha = 1: it keeps nothing."""

    def opened(self, first: int, last: int) -> Tensors:
        """Return an empty tuple: there are no sums over the past."""
        return ()

    def add(self, first: int, values: list[Tensor]) -> None:
        """Do nothing: no past is kept."""


class NoiseRows:
    """The noise of a solve by steps: drawn from a `NoisePath` in its own blocks, or given as one tensor.

    Args:
        path: The path that draws the noise.
        whole: The noise of all steps, [n_steps, *shape], where its gradient is wanted, else None.

    Attributes:
        has_gradients: Whether increments that are drawn may require a gradient; False in an adjoint without `whole`,
            which would lose such a gradient.
    """

    def __init__(self, path: NoisePath, whole: Tensor | None = None):
        self.path, self.whole, self.has_gradients = path, whole, True
        self._at, self._block = -1, torch.empty(0)

    def rows(self, first: int, last: int) -> Tensor:
        """Return the noise of steps first to last - 1, as far as there are so many, [steps, *shape]."""
        last = min(last, self.path.n_steps)
        if self.whole is not None:
            return self.whole[first:last]
        length, parts = self.path.block_steps, []
        while first < last:
            i = first // length
            if i != self._at:
                self._at, self._block = i, self._drawn(i)
            end = min(last, (i + 1) * length)
            parts.append(self._block[first - i * length : end - i * length])
            first = end
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else self._block[:0]

    def _drawn(self, i: int) -> Tensor:
        """Return the increments of block i of the noise path, [steps, *shape].

        Raises:
            ValueError: The increments require a gradient where `has_gradients` is False.
        """
        if self.has_gradients:
            return self.path.block(i)
        with torch.enable_grad():
            found = self.path.block(i)
        if found.requires_grad:
            kind = type(self.path.noise).__name__
            raise ValueError(
                f"fsdeint(noise of type {kind}): its increments have a gradient, and no tensor that it holds has one; "
                "keep what is learned as an attribute of the noise, in a container or a module of it, or pass "
                "adjoint=False."
            )
        return found


@dataclass(eq=False)
class Solve:
    """One stochastic solve: its steps, its noise and the steps whose states are wanted.

    Attributes:
        steps: The scheme's steps, taken in blocks.
        noise: The noise that drives the equation.
        n_steps: The last step; steps are counted from 0.
        outputs: The steps whose states are wanted, increasing, [outputs].
        times: The times of all steps, for error messages, [n_steps + 1].
        eps: The rounding of the dtype that drift and diffusion are computed in.
        progress: Called as progress(steps done, steps in all) after each block, or None.
        makes_leaves: Whether drift or diffusion are known to create leaf tensors that require a gradient.
        limits: The stability limits of the steps, or None where they are not known.
        drift: The drift of the equation, where there are limits.
    """

    steps: Steps
    noise: NoiseRows
    n_steps: int
    outputs: np.ndarray
    times: np.ndarray
    eps: float
    progress: Progress | None = None
    makes_leaves: bool = False
    limits: Limits | None = None
    drift: Field | None = None

    def __post_init__(self) -> None:
        bounds = range(0, self.n_steps + 1, self.steps.block)
        self.blocks = [(first, min(first + self.steps.block, self.n_steps + 1)) for first in bounds]

    def wanted(self, first: int, last: int) -> tuple[int, int]:
        """Return which outputs lie in the block of steps first to last - 1: indices low to high - 1 as (low, high)."""
        low, high = np.searchsorted(self.outputs, (first, last))
        return int(low), int(high)

    def run(
        self, z0: Tensor, shared: Tensors, memory: BlockMemory, keeps: bool
    ) -> tuple[Tensor, list[Tensors], list[Tensors], list[Tensor]]:
        """Take all steps; return the states at the outputs, [outputs, *shape], and what a replay needs.

        Args:
            z0: The state at the start, [*shape].
            shared: Tensors that all blocks read.
            memory: The past of the solve.
            keeps: Whether to return what a replay needs; else the last three results are empty lists.

        Returns:
            The states at the outputs; and for each block its carry, its steps' sums over the past with the weights of
            its own steps (an empty tuple without a memory), and the signature of its `compared` tensors, if any.

        Raises:
            FloatingPointError: A state is not finite, or the solution explodes.
        """
        watch = self._watch(z0)
        found = z0.new_empty(self.outputs.size, *z0.shape)
        carry: Tensors = (z0,)
        carries: list[Tensors] = []
        pasts: list[Tensors] = []
        signatures: list[Tensor] = []
        signature = Signature() if keeps else None
        recent: list[Tensor] = []
        for first, last in self.blocks:
            past = memory.opened(first, last)
            made = self.steps.run(first, last, carry, shared, past, self.noise.rows(first, last))
            if keeps:
                carries.append(carry)
                pasts.append((torch.stack(made.sums), past[1]) if past else ())
            if signature is not None and (compared := self.compared(first, last, made)):
                signatures.append(signature(torch.stack(compared)))
            self.check(first, made.states, recent, watch)
            recent = [*recent, *made.states][-WINDOW - 1 :]
            memory.add(first, made.values)
            low, high = self.wanted(first, last)
            if high - low == last - first:
                torch.stack(made.states, out=found[low:high])
            else:
                for row in range(low, high):
                    found[row] = made.states[self.outputs[row] - first]
            carry = made.carry
            if self.progress is not None:
                self.progress(last - 1, self.n_steps)
        return found, carries, pasts, signatures

    def compared(self, first: int, last: int, made: Advance) -> list[Tensor]:
        """Return those results of a block that have to be the same when the block is replayed, one tensor each.

        With a memory they are what the block's steps add to the past; else the states at its outputs, and the tensors
        of its carry that have a state's shape.
        """
        if made.values:
            return made.values
        low, high = self.wanted(first, last)
        found, shape = [made.states[n - first] for n in self.outputs[low:high]], made.states[0].shape
        for part in made.carry:
            if part.shape == shape:
                found.append(part)
        return found

    def plain(self, z0: Tensor, shared: Tensors, past: Tensors) -> Tensor:
        """Return the states at the outputs, [outputs, *shape], with the graph of every step: all steps are one block.

        Arguments are those of `Steps.run`.

        Raises:
            FloatingPointError: A state is not finite, or the solution explodes.
        """
        last = self.n_steps + 1
        states = self.steps.run(0, last, (z0,), shared, past, self.noise.rows(0, last)).states
        self.check(0, states, [], self._watch(z0))
        return torch.stack([states[n] for n in self.outputs])

    def _watch(self, z0: Tensor) -> Watch | None:
        """Return the test for explosions of a solve from z0, or None where the limits of stability are not known."""
        return None if self.limits is None or self.drift is None else Watch(self.limits, self.drift.layout, z0)

    def check(self, first: int, states: list[Tensor], before: list[Tensor], watch: Watch | None) -> None:
        """Raise FloatingPointError where a state of a block is not finite, or the solution explodes.

        Only the block's last state is tested where that is finite.

        Args:
            first: The block's first step.
            states: The states of the block's steps.
            before: The last states before the block.
            watch: The test for explosions, or None.
        """
        n, size = first + len(states) - 1, largest(states[-1])
        if size < math.inf:
            self._look(n, size, [*before, *states], watch)
            return
        for n, state in enumerate(states, start=first):
            if not is_finite(state):
                finite = [*before, *states[: n - first]]
                self._look(n - 1, largest(finite[-1]) if finite else 0.0, finite, watch)
                raise FloatingPointError(not_finite(f"at step {n}, t={self.times[n]:g}"))

    def _look(self, n: int, size: float, states: list[Tensor], watch: Watch | None) -> None:
        """Raise FloatingPointError where the solution explodes at step n.

        `states` are the last states up to that of step n, `size` is the largest absolute value of the last.
        """
        if watch is not None and watch.is_due(size):
            recent = states[-WINDOW - 1 :]
            watch.look(n, size, recent, lambda k: self._drift(n - WINDOW + k, recent[k]))

    def _drift(self, n: int, state: Tensor) -> Tensor:
        """Return the drift at step n and a state, without a graph."""
        assert self.drift is not None, "there are limits"
        with torch.no_grad():
            return self.drift(n, state)


class OneStepBlocks:
    """The `Steps` of a one-step scheme at alpha = 1; the carry is that of the scheme.

    Args:
        step: The scheme's step.
        n_steps: The last step; steps are counted from 0.
        numbers: The number of entries of a state.
    """

    def __init__(self, step: OneStep, n_steps: int, numbers: int):
        self.step, self.n_steps, self.block = step, n_steps, steps_of_block(numbers)

    def run(self, first: int, last: int, carry: Tensors, shared: Tensors, past: Tensors, noise: Tensor) -> Advance:
        """Take the scheme's steps from `first` to last - 1, and one more as the carry: see `Steps.run`."""
        if first == 0:
            carry = self.step.start(*carry)
        states = [carry[0]]
        for n, row in enumerate(noise.unbind(), start=first):
            carry = self.step.step(n, carry, row)
            states.append(carry[0])
        if last > self.n_steps:
            return Advance(states, ())
        states.pop()
        return Advance(states, carry)


class VolterraBlocks:
    """The `Steps` of a stochastic Volterra equation.

    The carry is the residual's term sigma g zeta of the block's last step, which is not in the memory; it is empty
    where the weights have no residual.

    Args:
        coefficients: Drift and diffusion.
        weights: How the past is weighted.
        n_steps: The last step; steps are counted from 0.
        numbers: The number of entries of a state.
        is_tracked: Whether autograd follows every sum, as plain backpropagation needs.
    """

    def __init__(
        self,
        coefficients: Coefficients,
        weights: volterra.VolterraWeights,
        n_steps: int,
        numbers: int,
        is_tracked: bool,
    ):
        self.c, self.weights, self.n_steps, self.is_tracked = coefficients, weights, n_steps, is_tracked
        self._buffers: dict[tuple[type, int], BufferedSums | KnownSums] = {}
        self.block = steps_of_block(numbers)

    def run(self, first: int, last: int, carry: Tensors, shared: Tensors, past: Tensors, noise: Tensor) -> Advance:
        """Take steps `first` to last - 1, adding up the past of each: see `Steps.run`.

        `past` is rows [steps, *shape] and weights by lag [steps, sets, *varying]. Forward the rows are sums over the
        steps before the block; in a replay, which has a graph, they are the known sums over all steps before each step.
        """
        c, sums = self.c, self._sums_of(*past)
        increments, residual = self._driving(noise, shared)
        states: list[Tensor] = []
        values: list[Tensor] = []
        made = [sums.first]
        y = made[0] + carry[0] if first and carry else made[0]
        for i, increment in enumerate(increments):
            n = first + i
            states.append(y)
            drift, g = c.drift(n, y), c.diffusion(n, y)
            values.append(self._value(drift, g, increment, sums.room(i)))
            if n + 1 < last:
                made.append(sums.following(i, values[-1], made[-1]))
                y = residual.added(i, made[-1], g)
        if last > self.n_steps:
            states.append(y)
            return Advance(states, (), values, made)
        return Advance(states, residual.alone(len(increments) - 1, g), values, made)

    def _sums_of(self, rows: Tensor, weights: Tensor) -> OwnSums:
        """Return the object that makes the sums over the past of a block's steps; blocks of one length share buffers.

        `rows` are the sums over the steps before the block, [steps, *shape], in a replay the known sums; `weights` are
        those of the block's own steps by lag.
        """
        if self.is_tracked:
            return TrackedSums(rows, weights)
        kind = KnownSums if torch.is_grad_enabled() else BufferedSums
        found = self._buffers.get((kind, rows.shape[0]))
        if found is None:
            found = self._buffers[kind, rows.shape[0]] = kind(rows, weights)
        else:
            found.begin(rows)
        return found

    def _driving(self, noise: Tensor, shared: Tensors) -> tuple[Tensors, NoResidual | Residual]:
        """Return a block's increments dW_j / h, one tensor for each step, and its residual sigma g zeta.

        `noise` is [steps, *shape], or [steps, 2, *shape] where zeta has its numbers beside dW_j; `shared[0]` is sigma.
        """
        if not self.weights.has_residual:
            return (noise / self.c.dt).unbind(), NoResidual()
        increments, others = noise.unbind(1)
        deviation = shared[0] / math.sqrt(self.c.dt)  # sigma over the increments' deviation: these become sigma zeta
        if deviation.numel() == 1:
            others, factor = others * deviation.reshape(()), None
        else:
            factor = deviation
        return (increments / self.c.dt).unbind(), Residual(self.c, others.unbind(), factor)

    def _value(self, drift: Tensor, g: Tensor, increment: Tensor, out: Tensor | None) -> Tensor:
        """Return what a step adds to the past: Z_j, or its two parts where drift and noise have their own weights.

        `increment` is dW_j / h. The result may be written to `out`, if that is a tensor.
        """
        if self.weights.sets == 1:
            return self.c.moved(drift, g, increment, out)
        return torch.stack([drift, self.c.applied(g, increment)], out=out)


class NoResidual:
    """The residual of a stochastic Volterra equation for weights that have none: nothing is added to the sums."""

    def added(self, i: int, memory: Tensor, g: Tensor) -> Tensor:
        """Return the state after step i of the block, from its sum over the past `memory` and the diffusion g."""
        return memory

    def alone(self, i: int, g: Tensor) -> Tensors:
        """Return the residual after step i of the block: the carry, which the next block adds to its first sum."""
        return ()


class Residual:
    """The residual sigma g zeta of the newest cell, which is added to a step's sum over the past.

    Args:
        coefficients: Drift and diffusion.
        noises: sigma zeta for each step of a block; where `factor` is a tensor, increments that it makes sigma zeta of.
        factor: A tensor that the product of g and a noise is multiplied by, where sigma differs between entries of the
            state; else None.
    """

    def __init__(self, coefficients: Coefficients, noises: Tensors, factor: Tensor | None):
        self.c, self._noises, self._factor = coefficients, noises, factor

    def added(self, i: int, memory: Tensor, g: Tensor) -> Tensor:
        """Return the state after step i of the block: its sum over the past `memory` plus the residual."""
        if self._factor is None:
            return self.c.moved(memory, g, self._noises[i])
        return memory + self.alone(i, g)[0]

    def alone(self, i: int, g: Tensor) -> Tensors:
        """Return the residual after step i of the block, as a tuple: see `NoResidual.alone`."""
        found = self.c.applied(g, self._noises[i])
        return (found if self._factor is None else found * self._factor,)


class Recollection:
    """The `BlockMemory` of a forward pass.

    Args:
        problem: The weights and the history.
        plan: The plan of the history for both passes.
        z0: The state at the start, which is part of every sum.
    """

    def __init__(self, problem: Problem, plan: Plan, z0: Tensor):
        assert problem.kept is not None, "the mesh is uniform"
        self._z0 = z0
        operand = toeplitz(problem.kept, problem.like, backward=True)  # a value for each set goes in, one sum out
        block = steps_of_block(problem.layout.shape.numel())
        self.past = Memory(operand, problem.site, plan, "forward", problem.layout, problem.like, block=block)
        self._views = self.past.views

    def opened(self, first: int, last: int) -> Tensors:
        """Return the sums of the block's steps over earlier blocks, z0 included, and the block's weights by lag.

        See `BlockMemory.opened`.
        """
        out, weights = self.past.opened(first, self._z0)
        return out[0], weights

    def add(self, first: int, values: list[Tensor]) -> None:
        """Add to the past the `values` Z_j of the block's steps from `first` on."""
        if values:
            torch.stack(values, out=self._views[first : first + len(values)])


class Anticipation:
    """The `BlockMemory` of the adjoint, which runs from the last step to the first, on cotangents of the states.

    Inside, steps are counted back from the last step of the last full block, so that the blocks are those of the
    forward pass.

    Args:
        problem: The weights and the history.
        plan: The plan of the history for both passes.
    """

    def __init__(self, problem: Problem, plan: Plan):
        assert problem.kept is not None, "the mesh is uniform"
        self.problem = problem
        forward = toeplitz(problem.kept, problem.like)
        self._block = steps_of_block(problem.layout.shape.numel())
        self._top = -(-(problem.n_steps + 1) // self._block) * self._block - 1
        columns = torch.nn.functional.pad(forward.columns, (0, self._top - problem.n_steps))
        operand = Toeplitz(columns, forward.nodes, forward.coefficients)
        self.past = Memory(operand, problem.site, plan, "backward", problem.layout, problem.like, block=self._block)
        self._views = self.past.views

    def opened(self, first: int, last: int) -> Tensors:
        """Return the cotangents, from all later blocks, of what steps first to last - 1 add to the past.

        The result is a tuple of one tensor, [steps, *shape] or [steps, sets, *shape].
        """
        out, _ = self.past.opened(self._top + 1 - first - self._block)
        by_step = out[0] if out.shape[0] == 1 else out.transpose(0, 1)
        return (by_step.flip(0)[: last - first],)

    def add(self, first: int, values: list[Tensor]) -> None:
        """Add to the adjoint's past the cotangents `values` of the block's states from step `first` on."""
        begin = self._top + 1 - first - len(values)
        torch.stack(values[::-1], out=self._views[begin : begin + len(values)])

    @property
    def cotangents(self) -> Tensor:
        """The cotangents of all states X_n, [a, n_steps + 1, r]: a orders, r entries of a state for each order."""
        return self.past.values[:, :, 0].flip(1)[:, : self.problem.n_steps + 1]


@dataclass(eq=False)
class Weighting:
    """The weights of a stochastic Volterra equation, as numbers and as functions of alpha.

    Attributes:
        weights: How the past is weighted.
        problem: The history, and as its scheme the weights h w of Z_j.
    """

    weights: volterra.VolterraWeights
    problem: Problem

    def fixed(self) -> Tensors:
        """Return a tuple of sigma at the present orders, broadcastable to a state; empty without a residual."""
        return self._sigma(torch.from_numpy(volterra.residual(self.problem.orders, self.problem.dt, NUMPY)))

    def traced(self, alpha: Tensor, z0: Tensor) -> tuple[Tensors, Tensors]:
        """Return what one block of all steps needs, with graphs from alpha [a] and z0.

        Returns:
            A tuple of sigma, as of `fixed`, and a tuple of the sums before the block, which are z0 at every step,
            [n_steps + 1, *shape], and the weights by lag, [n_steps + 1, sets, *varying].
        """
        problem = self.problem
        assert problem.kept is not None, "the mesh is uniform"
        given = problem.scheme.weights(alpha, problem.n_steps, problem.dt, TORCH)
        columns = problem.history.used(given, problem.kept.nodes, TORCH).columns.to(problem.like)
        count = problem.n_steps + 1
        weights = columns.permute(2, 1, 0).reshape(count, self.weights.sets, *problem.layout.varying)
        rows = z0.expand(count, *z0.shape)
        return self._sigma(volterra.residual(alpha, problem.dt, TORCH)), (rows, weights)

    def order_gradient(self, alpha: Tensor, cotangents: Tensor, values: Tensor, sigma: Tensors) -> Tensor:
        """Return the loss's gradient in alpha, [a], float64, through the formulas of the weights and of sigma.

        Args:
            alpha: The orders, [a].
            cotangents: The cotangents of all states, [a, n_steps + 1, r].
            values: What the steps added to the past, [a, n_steps + 1, sets, r].
            sigma: A tuple of the gradient in sigma; empty without a residual.
        """
        problem = self.problem
        assert problem.kept is not None, "the mesh is uniform"
        columns = torch.cat([by_lag(cotangents[:, :, None], some) for some in values.unbind(2)], 1)
        with torch.enable_grad():
            orders = alpha.detach().double().requires_grad_()
            given = problem.scheme.weights(orders, problem.n_steps, problem.dt, TORCH)
            used = problem.history.used(given, problem.kept.nodes, TORCH)
            outputs, grads = [used.columns], [columns]
            if sigma:
                outputs.append(volterra.residual(orders, problem.dt, TORCH))
                grads.append(sigma[0].double().reshape(-1))
        (found,) = torch.autograd.grad(outputs, orders, grads)
        return found

    def _sigma(self, values: Tensor) -> Tensors:
        return (self.problem.layout.broadcast(values).to(self.problem.like),) if self.weights.has_residual else ()
