"""`fdeint`: Caputo's initial value problem for tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.probe import is_traced, uncompiled
from hpfracc_nn.selection import BackendManager, Site, default_manager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.history import ANY_MESH, HISTORIES, Automatic, Exponentials, FFTBlocks, Full, History, Window
from hpfracc_nn.solvers.mesh import MESHES, ON_MESH, Graded, Mesh, Uniform, interpolation, places
from hpfracc_nn.solvers.schemes import SCHEMES, Scheme
from hpfracc_nn.solvers.torch import kernels, plain  # noqa: F401  kernels are registered on import
from hpfracc_nn.solvers.torch.adjoint import recorded
from hpfracc_nn.solvers.torch.field import Field, RightHandSide
from hpfracc_nn.solvers.torch.packing import S, State, packing_of
from hpfracc_nn.solvers.torch.parameters import discovered
from hpfracc_nn.solvers.torch.problem import Problem, Progress

_DTYPES = (torch.float32, torch.float64)


def fdeint(
    f: RightHandSide,
    y0: S,
    ts: Tensor | Sequence[float] | np.ndarray,
    alpha: float | Tensor,
    *,
    scheme: str | Scheme = "predictor_corrector",
    history: str | History = "auto",
    mesh: str | Mesh = "uniform",
    n_steps: int | None = None,
    dy0: S | None = None,
    adjoint: bool = True,
    params: Iterable[Tensor] | None = None,
    progress: Progress | None = None,
    manager: BackendManager | None = None,
) -> S:
    """Return the solution of D^alpha y = f(t, y), Caputo's derivative from ts[0] on, at the times `ts`.

    Costs n_steps evaluations of f (twice that for predictor_corrector, some more where a step solves an equation) and
    the history's sum over the past. Backwards, only the states are saved, n_steps + 1 of them, and f is evaluated
    again.

    Args:
        f: Called as f(t, y) with t a tensor of no axes and y like y0: dy of the same shape. It must not change y. In
            the adjoint it may be called for many times at once under `torch.func.vmap`.
        y0: The state at ts[0], float32 or float64: a tensor of any shape, or a tuple of tensors.
        ts: Increasing times; on a uniform mesh, points of it.
        alpha: In (0, 2): a float, or a tensor, which may be learned: one number, or one for each entry along some of
            y0's axes (a shape that broadcasts to y0's).
        scheme: "rectangle", "predictor_corrector", "trapezoid", "bdf2", or a `Scheme` with its options.
        history: "auto", which asks the BackendManager, "full", "fft", "exponentials", or a `History` with its options.
        mesh: "uniform", "graded", or a `Mesh`. Graded meshes suit y that begins like t**alpha.
        n_steps: Steps from ts[0] to ts[-1]; None takes those of `ts`.
        dy0: The derivative at ts[0], like y0, where an order is above 1; the entries of lower orders are not looked at.
        adjoint: Whether gradients come from the exact adjoint of the scheme; else by plain backpropagation, whose
            memory grows with n_steps**2, which second derivatives and transforms of `torch.func` need.
        params: Tensors that f reads and that want gradients, where they are no parameters of a module and f does not
            use them at the first step.
        progress: Called as progress(steps done, steps in all) after each block of steps.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a tuple of such.

    Raises:
        ValueError: An argument is out of range, or f returns another shape.
        TypeError: An argument has the wrong type, or f returns one.
        FloatingPointError: f returns what is not finite, or the solution diverges.
        RuntimeError: The equation of an implicit step is not solved.
        LookupError: No kernel that the manager allows can keep this history.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3; Garrappa, Mathematics 6 (2018) 16.

    Example:
        >>> ts = torch.linspace(0, 1, 101, dtype=torch.float64)
        >>> y = fdeint(lambda t, y: -y, torch.ones(1, dtype=torch.float64), ts, 0.5)
    """
    method = Method.of("fdeint", scheme, history, mesh)
    site = (manager or default_manager()).shared_site(method.op, "torch", "fdeint")
    found: S = solved(f, y0, ts, alpha, method, site, n_steps, dy0, adjoint, params, progress)
    return found


@uncompiled
def solved(
    f: RightHandSide,
    y0: State,
    ts: Any,
    alpha: float | Tensor,
    method: Method,
    site: Site,
    n_steps: int | None = None,
    dy0: State | None = None,
    adjoint: bool = True,
    params: Iterable[Tensor] | None = None,
    progress: Progress | None = None,
) -> Any:
    """Return what `fdeint` does, by a method and a site that the caller keeps; the site is of the method's operation.

    Under autocast f runs as it would elsewhere and its results are taken in the state's dtype; sums over the past are
    not autocast.
    """
    call = Call(f, y0, ts, alpha, method, n_steps, dy0)
    kind = call.like.device.type
    if not torch.is_autocast_enabled(kind):
        return call.solved(site, adjoint, params, progress)
    call.low = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        return call.solved(site, adjoint, params, progress)


@dataclass(frozen=True)
class Method:
    """How an equation is solved.

    Attributes:
        scheme: How steps are taken.
        history: How the past is kept.
        mesh: Where steps are taken.
    """

    scheme: Scheme
    history: History
    mesh: Mesh

    @property
    def op(self) -> str:
        """The operation that the manager is asked for."""
        return self.history.op if isinstance(self.mesh, Uniform) else ANY_MESH

    @classmethod
    def of(cls, owner: str, scheme: str | Scheme, history: str | History, mesh: str | Mesh) -> Method:
        """Return the method that names or objects mean.

        Raises:
            ValueError: There is none of that name, or they do not go together.
            TypeError: One is neither a name nor an option.
        """
        kinds = (Automatic, Full, FFTBlocks, Exponentials, Window)
        found = cls(
            checks.named(owner, "scheme", scheme, SCHEMES, tuple(SCHEMES.values())),
            checks.named(owner, "history", history, HISTORIES, kinds),
            checks.named(owner, "mesh", mesh, MESHES, (Uniform, Graded)),
        )
        if isinstance(found.mesh, Uniform):
            return found
        if isinstance(found.history, Automatic):
            found = replace(found, history=Full())  # all of the past, and only one way to add it up
        for part, reason, way_out in (
            ("scheme", found.scheme.needs_uniform, "scheme='trapezoid'"),
            ("history", found.history.needs_uniform, "history='full'"),
        ):
            if reason:
                raise ValueError(
                    f"{owner}({part}={getattr(found, part).name!r}, mesh={found.mesh}): needs a uniform mesh, because "
                    f"{reason}; pass mesh='uniform', or {way_out}."
                )
        return found


class Call:
    """The arguments of one call, checked and laid out; those of `fdeint`.

    Raises:
        ValueError: One is out of range.
        TypeError: One has the wrong type.
    """

    def __init__(
        self,
        f: RightHandSide,
        y0: State,
        ts: Any,
        alpha: float | Tensor,
        method: Method,
        n_steps: int | None = None,
        dy0: State | None = None,
    ):
        if not callable(f):
            raise TypeError(f"fdeint(f of type {type(f).__name__}): needs a function f(t, y); pass one.")
        self.method = method
        self.low: torch.dtype | None = None  # of f's autocast
        self.f, self.y0 = f, _checked_state("y0", y0)
        self.like = self.y0[0] if isinstance(self.y0, tuple) else self.y0
        self.alpha = alpha if isinstance(alpha, Tensor) else None
        self.orders = _orders(alpha)
        self.packing = packing_of(self.y0, torch.Size(()) if self.alpha is None else self.alpha.shape)
        checks.orders("fdeint", self.orders, dy0 is not None)
        self.dy0 = None if dy0 is None else _like(self.y0, _checked_state("dy0", dy0))
        given = _values("ts", ts) if isinstance(ts, Tensor) else ts
        outputs, resolution = checks.increasing("fdeint", given), _resolution(ts)
        least = float(self.orders.min())
        self.times, self.index = _mesh(method.mesh, outputs, resolution, n_steps, least)

    def solved(self, site: Site, adjoint: bool, params: Iterable[Tensor] | None, progress: Progress | None) -> State:
        """Return the states at the output times."""
        field, method = Field(self.f, self.packing, self.times, self.like, self.low), self.method
        is_uniform = isinstance(method.mesh, Uniform)
        is_fixed = self.alpha is None or not self.alpha.requires_grad
        problem = Problem(
            field, method.scheme, method.history, site, self.orders, self.times, is_uniform, is_fixed, progress
        )
        z0 = self.packing.joined(self.y0)
        dz0 = None if self.dy0 is None else self._slope(self.dy0)
        alpha = None if self.alpha is None else self.alpha.to(z0.device, torch.float64).reshape(-1)
        is_seen = is_traced(z0, ()) or forward_ad._current_level >= 0
        if not is_seen and not torch.is_grad_enabled():
            states = problem.solve(problem.pick(False), z0, dz0)
        elif is_seen or not adjoint:
            given = torch.as_tensor(self.orders, device=z0.device) if alpha is None else alpha
            states = plain.solve(problem, z0, dz0, given)
        else:
            states = self._recorded(problem, z0, dz0, alpha, params)
        return self.packing.parted(self._at_outputs(states))

    def _recorded(
        self,
        problem: Problem,
        z0: Tensor,
        dz0: Tensor | None,
        alpha: Tensor | None,
        params: Iterable[Tensor] | None,
    ) -> Tensor:
        _, parameters = discovered("fdeint", problem.field, z0, params)
        tensors = [z0, dz0, alpha, *parameters]
        if not any(each is not None and each.requires_grad for each in tensors):
            return problem.solve(problem.pick(False), z0, dz0)
        return recorded(problem, problem.pick(True), z0, dz0, alpha, parameters)

    def _slope(self, dy0: State) -> Tensor:
        """Return the derivative at the start, 0 for the orders that have no such condition."""
        slope = self.packing.joined(dy0)
        return slope * self.packing.spread(torch.as_tensor(self.orders > 1)).to(slope)

    def _at_outputs(self, states: Tensor) -> Tensor:
        """Return the states at the output times, [times, *shape]."""
        whole = np.round(self.index).astype(np.int64)
        if (whole == self.index).all():
            if np.array_equal(whole, np.arange(states.shape[0])):
                return states
            return states[torch.as_tensor(whole, device=states.device)]
        at, weights = interpolation(self.index, states.shape[0] - 1)
        placed = torch.as_tensor(weights).to(states)
        points = states[torch.as_tensor(at, device=states.device)]
        return torch.einsum("ti,ti...->t...", placed, points)


def _checked_state(name: str, y: Any) -> State:
    parts = tuple(y) if isinstance(y, tuple | list) else (y,)
    if not parts:
        raise ValueError(f"fdeint({name}=()): needs a tensor, or some of them; pass the state at the start.")
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(
                f"fdeint({name} of type {type(part).__name__}): needs a tensor, or a tuple of tensors; pass "
                f"torch.as_tensor({name})."
            )
        if part.dtype not in _DTYPES:
            raise TypeError(
                f"fdeint({name} of dtype {part.dtype}): needs float32 or float64; convert with "
                f"{name}.to(torch.float32)."
            )
        if part.dtype != parts[0].dtype or part.device != parts[0].device:
            raise TypeError(
                f"fdeint({name}): needs tensors of one dtype and device; they are {parts[0].dtype} on "
                f"{parts[0].device} and {part.dtype} on {part.device}; convert them with .to(...)."
            )
        if part.numel() == 0:
            raise ValueError(f"fdeint({name} of shape {tuple(part.shape)}): needs numbers; pass a state that has some.")
    return parts if isinstance(y, tuple | list) else parts[0]


def _like(y0: State, dy0: State) -> State:
    shapes = [tuple(part.shape) for part in (y0 if isinstance(y0, tuple) else (y0,))]
    given = [tuple(part.shape) for part in (dy0 if isinstance(dy0, tuple) else (dy0,))]
    if shapes != given or isinstance(y0, tuple) != isinstance(dy0, tuple):
        raise ValueError(
            f"fdeint(dy0 of shape {given}): needs the shape of y0, {shapes}; pass a derivative for each entry."
        )
    return dy0


def _orders(alpha: Any) -> np.ndarray:
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"fdeint(alpha of dtype {alpha.dtype}): needs a floating tensor; pass alpha.double().")
        return _values("alpha", alpha).reshape(-1)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.floating):
        raise TypeError(
            f"fdeint(alpha of type {type(alpha).__name__}): needs a float or a floating tensor; pass for example 0.5."
        )
    return np.array([float(alpha)])


def _values(name: str, x: Tensor) -> np.ndarray:
    """Return a tensor's numbers, also inside a transform, where operations would return what has none."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            raise ValueError(
                f"fdeint({name}): needs the same {name} throughout torch.func.vmap; pass an alpha for each entry of "
                "y0, or call fdeint once for each."
            )
        x = functorch.get_unwrapped(x)
    return np.array(x.tolist(), dtype=np.float64)


def _resolution(ts: Any) -> float:
    """Return the relative precision that times were given in."""
    if isinstance(ts, Tensor) and ts.is_floating_point():
        return torch.finfo(ts.dtype).eps
    if isinstance(ts, np.ndarray) and ts.dtype.kind == "f":
        return float(np.finfo(ts.dtype).eps)
    return float(np.finfo(np.float64).eps)


def _mesh(
    mesh: Mesh, outputs: np.ndarray, resolution: float, n_steps: int | None, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mesh and where the outputs lie on it."""
    rounding = 8 * resolution * float(np.abs(outputs).max())
    if n_steps is None:
        spacing = np.diff(outputs)
        if isinstance(mesh, Uniform) and np.ptp(spacing) > rounding + ON_MESH * spacing.mean():
            i = int(np.argmax(np.abs(spacing - spacing.mean())))
            raise ValueError(
                f"fdeint(ts=...): a uniform mesh needs equal steps or a number of steps; ts[{i + 1}] - ts[{i}]="
                f"{spacing[i]:g} and the mean is {spacing.mean():g}; pass n_steps, or mesh='graded'."
            )
        n_steps = spacing.size
    n_steps = errors.count("fdeint", "n_steps", n_steps)
    times = mesh.times(float(outputs[0]), float(outputs[-1]), n_steps, alpha)
    try:
        return times, places(mesh, times, outputs, alpha, rounding)
    except ValueError as error:
        raise ValueError(f"fdeint(ts=...): {error}") from None
