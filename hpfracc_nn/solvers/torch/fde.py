"""`fdeint`, the solver of Caputo's initial value problem for tensors; and its calls, checked and laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.tracing import is_traced, uncompiled
from hpfracc_nn.selection import BackendManager, Site, given_manager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import Collocation, check_fixed, check_history
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.mesh import MESHES, Graded, Mesh, Points, Uniform, interpolation
from hpfracc_nn.solvers.method import Method, laid_out
from hpfracc_nn.solvers.schemes import SCHEMES, Scheme
from hpfracc_nn.solvers.torch import (
    kernels,  # noqa: F401  kernels are registered on import
    traced,
)
from hpfracc_nn.solvers.torch.adjoint import recorded, trainable
from hpfracc_nn.solvers.torch.collocation.solve import collocated, options_of
from hpfracc_nn.solvers.torch.fixed import CountedField, Steps, doubled, solution_of
from hpfracc_nn.solvers.torch.integrate import Problem, Progress
from hpfracc_nn.solvers.torch.solution import Event, Solution, TreeLayout, events_of, is_plain
from hpfracc_nn.solvers.torch.state import (
    Casts,
    Field,
    RightHandSide,
    State,
    check_untraced,
    checked_state,
    layout_of,
    like_start,
    orders_of,
    present,
    resolution,
    times_of,
    without,
)

_LONGEST = 1 << 12  # most output times of a grid that is cached


@lru_cache(maxsize=64)
def _method(owner: str, scheme: str, history: str, mesh: str) -> Method:
    """Return the `Method` of these names, cached; an error for an unknown scheme names "collocation" too."""
    errors.one_of(owner, "scheme", scheme, (*SCHEMES, "collocation"))
    return Method.of(owner, scheme, history, mesh)


@dataclass(frozen=True, eq=False)
class Grid:
    """The mesh of a solve, and where the outputs lie on it; float64.

    Attributes:
        outputs: The output times as time since the first, [outputs].
        elapsed: The mesh as time since the first output, [n_steps + 1].
        times: The mesh in the caller's time.
        index: The outputs as fractional indices of the mesh, [outputs].
        steps: The outputs as indices of steps, [outputs], where all are points of the mesh, else None.
        is_whole: Whether the outputs are all points of the mesh, in their order.
    """

    outputs: np.ndarray
    elapsed: np.ndarray
    times: np.ndarray
    index: np.ndarray
    steps: np.ndarray | None
    is_whole: bool


@lru_cache(maxsize=64)
def _grid_of(
    mesh: Mesh,
    ts: bytes,
    eps: float,
    n_steps: int | None,
    orders: tuple[float, ...],
    has_slope: bool,
    may_change: bool,
    anywhere: bool,
) -> Grid:
    """Return the `Grid` of a solve; raise ValueError for orders or times out of range.

    `ts` are the bytes of float64 times, `eps` is their rounding. `has_slope` says whether dy0 is passed, `may_change`
    whether the orders are a tensor's, which may be learned, `anywhere` whether outputs may lie between equal steps.
    """
    checks.orders("fdeint", np.array(orders), has_slope, may_change)
    given = checks.increasing("fdeint", np.frombuffer(ts))
    elapsed, index = laid_out(mesh, given, eps, n_steps, min(orders), anywhere)
    whole = np.round(index).astype(np.int64)
    steps = whole if (whole == index).all() else None
    is_whole = steps is not None and np.array_equal(steps, np.arange(elapsed.size))
    return Grid(given - given[0], elapsed, float(given[0]) + elapsed, index, steps, is_whole)


class Call:
    """One call of `fdeint` with fixed steps: its arguments, checked and laid out.

    With `anywhere` outputs may lie between equal steps, and `solved` returns the states there.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.
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
        anywhere: bool = False,
    ):
        if not callable(f):
            raise TypeError(f"fdeint(f of type {type(f).__name__}): needs a function f(t, y); pass one.")
        self.method = method
        self.casts: Casts | None = None  # f's autocast
        self.f, self.y0 = f, checked_state("fdeint", "y0", y0)
        self.like = self.y0[0] if isinstance(self.y0, tuple) else self.y0
        self.alpha = alpha if isinstance(alpha, Tensor) else None
        self.orders = orders_of("fdeint", alpha)
        self.layout = layout_of(self.y0, torch.Size(()) if self.alpha is None else self.alpha.shape)
        times = np.asarray(times_of("fdeint", ts), dtype=np.float64)
        if times.ndim != 1:
            checks.increasing("fdeint", times)
        is_plain = times.size <= _LONGEST and (n_steps is None or type(n_steps) is int)
        grid_of = _grid_of if is_plain else _grid_of.__wrapped__
        orders, has_slope, is_tensor = tuple(self.orders.tolist()), dy0 is not None, self.alpha is not None
        given = times.tobytes(), resolution(ts), n_steps, orders, has_slope, is_tensor, anywhere
        self.grid = grid_of(method.mesh, *given)
        self.dy0 = None if dy0 is None else like_start(self.y0, checked_state("fdeint", "dy0", dy0))

    def solved(
        self,
        site: Site,
        adjoint: bool,
        params: Iterable[Tensor] | None,
        progress: Progress | None,
        full: bool = False,
    ) -> State | Solution:
        """Return the states at the output times, or with `full` a `Solution`; other arguments as of `fdeint`.

        `site` is the call site that picks the plan of the history.
        """
        problem = self.problem(site, progress, CountedField if full else Field)
        z0 = self.layout.ravel(self.y0)
        dz0 = None if self.dy0 is None else self._slope(self.dy0)
        alpha = None if self.alpha is None else self.alpha.to(z0.device, torch.float64).reshape(-1)
        is_seen = is_traced(z0, ()) or forward_ad._current_level >= 0
        if not is_seen and not torch.is_grad_enabled():
            states = problem.solve(problem.pick(False), z0, dz0)
        elif is_seen or not adjoint:
            given = torch.as_tensor(self.orders, device=z0.device) if alpha is None else alpha
            states = traced.solve(problem, z0, dz0, given, is_seen)
        else:
            states = self._recorded(problem, z0, dz0, alpha, params)
        if full or (self.grid.steps is None and problem.is_uniform):
            return self._between(problem.field, states, alpha, full)
        return self.layout.unravel(self.at_outputs(states, dz0))

    def _between(self, field: Field, states: Tensor, alpha: Tensor | None, full: bool) -> State | Solution:
        """Return the states at the output times, or with `full` a `Solution`, from the states of all steps.

        Output times may lie between steps.
        """
        grid = self.grid
        first = None
        if full:
            with torch.no_grad():
                first = field(0, states[0].detach())
        path = Steps(field, grid.elapsed, states, self.orders, alpha, first)
        ys = path.states(grid.outputs, 0) if grid.steps is None else self.at_outputs(states)
        return solution_of(path, grid.outputs, ys) if full else self.layout.unravel(ys)

    def problem(self, site: Site, progress: Progress | None = None, kind: type[Field] = Field) -> Problem:
        """Return the `Problem` of this call: all that is solved beside the tensors whose gradients are wanted.

        `kind` is the class of its right-hand side.
        """
        grid, method = self.grid, self.method
        field = kind(self.f, self.layout, grid.times, self.like, self.casts)
        is_uniform = isinstance(method.mesh, Uniform)
        is_fixed = self.alpha is None or not self.alpha.requires_grad
        return Problem(
            field, method.scheme, method.history, site, self.orders, grid.elapsed, is_uniform, is_fixed, progress
        )

    def _recorded(
        self,
        problem: Problem,
        z0: Tensor,
        dz0: Tensor | None,
        alpha: Tensor | None,
        params: Iterable[Tensor] | None,
    ) -> Tensor:
        parameters, read = trainable(problem.field, z0, params)
        tensors = [z0, dz0, alpha, *parameters]
        if not [each for each in tensors if each is not None and each.requires_grad]:
            return problem.solve(problem.pick(False), z0, dz0)
        return recorded(problem, problem.pick(True), z0, dz0, alpha, parameters, read)

    def _slope(self, dy0: State) -> Tensor:
        """Return dy0 as one tensor, [*shape], with 0 for orders up to 1, which have no such condition at the start."""
        slope = self.layout.ravel(dy0)
        return slope * self.layout.broadcast(torch.as_tensor(self.orders > 1)).to(slope)

    def at_outputs(self, states: Tensor, dz0: Tensor | None = None) -> Tensor:
        """Return the states at the output times, [times, *shape].

        Args:
            states: The states at all steps, [n_steps + 1, *shape].
            dz0: The derivative at the start, or None. Its line is added exactly, because it is no smooth function of
                the step's index, in which states are interpolated.
        """
        grid = self.grid
        if grid.is_whole:
            return states
        if grid.steps is not None:
            return states[torch.as_tensor(grid.steps, device=states.device)]
        at, weights = interpolation(grid.index, states.shape[0] - 1)
        placed = torch.as_tensor(weights).to(states)
        points = states[torch.as_tensor(at, device=states.device)]
        found = torch.einsum("ti,ti...->t...", placed, points)
        if dz0 is None:
            return found
        missed = grid.outputs - (weights * grid.elapsed[at]).sum(-1)
        return found + torch.as_tensor(missed).to(states).view(-1, *[1] * dz0.ndim) * dz0


def fdeint(
    f: Callable[..., Any],
    y0: Any,
    ts: Tensor | Sequence[float] | np.ndarray,
    alpha: float | Tensor,
    *,
    args: Any = None,
    scheme: str | Scheme | Collocation | None = None,
    rtol: float | None = None,
    atol: float | Tensor | None = None,
    max_steps: int = 10_000,
    max_step: float | None = None,
    breakpoints: Sequence[float] | np.ndarray | Tensor | None = None,
    events: Event | Sequence[Event] = (),
    full: bool = False,
    throw: bool = True,
    history: str | History = "auto",
    mesh: str | Mesh | Points = "uniform",
    n_steps: int | None = None,
    dy0: Any = None,
    adjoint: bool = True,
    params: Iterable[Tensor] | None = None,
    progress: Progress | None = None,
    manager: BackendManager | None = None,
) -> Any:
    """Return the solution of D^alpha y = f(t, y), Caputo's derivative from ts[0] on, at the times `ts`.

    With a tolerance, `rtol` or `atol`, the steps are chosen by the solver, and the scheme is `Collocation`. Otherwise
    there are `n_steps`, at the cost of as many evaluations of f (twice that for predictor_corrector, some more where a
    step solves an equation) and of the history's sum over the past. But under `torch.no_grad` f is evaluated twice
    more, to see that it may be evaluated again for gradients. Only the states are saved, n_steps + 1 of them (by
    predictor_corrector three times as many numbers, by collocation twice those of all stages), and backwards f is
    evaluated again.

    Args:
        f: Called as f(t, y) with t a tensor of no axes and y like y0, or as f(t, y, args): dy of the same shape. It
            must not change y.
        y0: The state at ts[0]: a tensor of any shape, or a tuple, dict or other tree of tensors (those that
            torch.utils._pytree knows), float32 or float64 or complex of these. A complex tensor is solved as its real
            and imaginary part, so that f need not be holomorphic.
        ts: Increasing times, in the caller's unit. Without `n_steps` they are the steps, and equal on a uniform mesh;
            with it, and by collocation, they are any. Between equal steps f is evaluated once more at all steps.
        alpha: In (0, 2): a float, or a tensor, which may be learned: one number, or one for each entry along some of
            y0's axes (a shape that broadcasts to y0's).
        args: A third argument that f is called with, any object; None is no third argument.
        scheme: "rectangle", "predictor_corrector", "trapezoid", "bdf2", "collocation", or a `Scheme` or `Collocation`
            with its options; None is "collocation" with a tolerance and "predictor_corrector" without.
        rtol: Without a scheme, or by collocation, the error that a step may have, relative to the state: the root mean
            square over a sample of its error divided by atol + rtol |y| is at most 1. A sample is what belongs to one
            index of the first axis of y0, if it has several axes, else all of y0. By another scheme the states at `ts`
            may have such an error: they are computed once more with twice the steps, and an error is raised where the
            change shows a larger error; `Solution.error` is the estimate. rtol is at least 100 times the dtype's
            rounding, or 0, which means that; None beside `atol` is 1e-3.
        atol: The absolute part of the error that `rtol` describes: a number, or a tensor that broadcasts to y0; None
            beside `rtol` is 1e-6.
        max_steps: The most steps of a solve to a tolerance; a solve that needs more raises an error.
        max_step: The longest step to a tolerance, so that no pulse of f falls between the times at which f is
            evaluated; None is no limit.
        breakpoints: Increasing times at which f may jump: steps to a tolerance end there and begin small again. Those
            that are not between ts[0] and ts[-1] play no part.
        events: An `Event` or several, functions of t and y whose zeros are looked for; by collocation, and with `full`.
        full: Whether a `Solution` is returned, in place of the states.
        throw: Whether a solve to a tolerance that cannot go on raises an error. Otherwise its states are NaN from there
            on, and where y0 has several samples the others go on. By another scheme, with a tolerance and `full`,
            whether too large an error is raised; else the solution's `status` is "inaccurate".
        history: "auto", which leaves the choice to the BackendManager, "full", "fft", "exponentials", or a `History`
            with its options.
        mesh: "uniform", "graded", a `Mesh`, or by collocation `Points`. Graded meshes suit y that begins like t**alpha.
        n_steps: Steps from ts[0] to ts[-1]; None takes those of `ts`.
        dy0: The derivative at ts[0], like y0, where an order is above 1; the entries of lower orders are not looked at.
            An alpha that is a tensor may have it at any value: where a learned order passes 1, the solution jumps by
            (t - ts[0]) dy0, which no gradient sees, unless dy0 is 0.
        adjoint: Whether gradients come from the exact adjoint of the scheme; else by plain backpropagation, whose
            memory grows with n_steps**2, which second derivatives and transforms of `torch.func` need.
        params: Tensors that f reads and whose gradients are wanted, as far as the solver cannot find them: they are
            neither leaves that f holds or names, nor parameters of a module that it does, and f does not use them at
            the first step.
        progress: Called as progress(steps done, steps in all) after each block of steps.
        manager: The BackendManager that chooses the kernel of the history; None is the process-wide one.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a tuple of such; a `Solution` with `full`.

    Raises:
        ValueError: An argument is out of range, or f returns another shape.
        TypeError: An argument, or what f returns, has the wrong type.
        FloatingPointError: f returns a number that is not finite, the solution diverges or explodes, or it has a larger
            error than the tolerances allow.
        RuntimeError: The equation of an implicit step is not solved, or max_steps do not lead to the end.
        NotImplementedError: A derivative is wanted that collocation's adjoint does not have, such as a second one.
        LookupError: No kernel that the manager allows can keep this history.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3; Garrappa, Mathematics 6 (2018) 16.

    Examples:
        >>> ts = torch.linspace(0, 1, 101, dtype=torch.float64)
        >>> y = fdeint(lambda t, y: -y, torch.ones(1, dtype=torch.float64), ts, 0.5)
        >>> y[-1]  # E_(1/2)(-1) = e erfc(1) = 0.4276
        tensor([0.4276], dtype=torch.float64)
        >>> y = fdeint(
        ...     lambda t, y: -y, torch.ones(1).double(), [0, 1], 0.5, rtol=1e-9, atol=1e-9
        ... )
        >>> bool((y[-1] - mittag_leffler(-1.0, 0.5)).abs() < 1e-9)
        True
    """
    is_usual = isinstance(y0, Tensor) and not y0.is_complex()  # saves the usual case one call
    if not is_usual and not is_plain(y0):
        return _of_tree(
            TreeLayout(y0),
            f,
            y0,
            dy0,
            alpha,
            ts,
            args=args,
            scheme=scheme,
            rtol=rtol,
            atol=atol,
            max_steps=max_steps,
            max_step=max_step,
            breakpoints=breakpoints,
            events=events,
            full=full,
            throw=throw,
            history=history,
            mesh=mesh,
            n_steps=n_steps,
            adjoint=adjoint,
            params=params,
            progress=progress,
            manager=manager,
        )
    function: RightHandSide = f if args is None else partial(_with_args, f, args)
    if scheme is None:
        scheme = "predictor_corrector" if rtol is None and atol is None else "collocation"
    if scheme == Collocation.name or isinstance(scheme, Collocation):
        check_history("fdeint", history)
        if events and not full:
            raise ValueError("fdeint(events=..., full=False): needs full=True, whose Solution has the events; pass it.")
        options = options_of(
            rtol=rtol,
            atol=atol,
            mesh=None if mesh == "uniform" else checks.named("fdeint", "mesh", mesh, MESHES, (Uniform, Graded, Points)),
            n_steps=n_steps,
            events=events,
            max_steps=max_steps,
            max_step=max_step,
            breakpoints=breakpoints,
            throw=throw,
            progress=progress,
        )
        chosen = scheme if isinstance(scheme, Collocation) else Collocation()
        solution = collocated(function, y0, ts, alpha, chosen, options, dy0, adjoint, params)
        return solution if full else solution.ys
    are_names = type(scheme) is type(history) is type(mesh) is str
    method = (_method if are_names else Method.of)("fdeint", scheme, history, mesh)
    has_tolerance = rtol is not None or atol is not None
    if events or not throw or max_step is not None or breakpoints is not None:
        check_fixed("fdeint", method.scheme.name, events, throw or (full and has_tolerance), max_step, breakpoints)
    site = given_manager("fdeint", manager).shared_site(method.op, "torch", "fdeint")
    found = solved(function, y0, ts, alpha, method, site, n_steps, dy0, adjoint, params, progress, full)
    if not has_tolerance:
        return found
    again = partial(solved, function, y0, ts, alpha, method, site, dy0=dy0)
    return doubled(again, method.scheme, found, ts, n_steps, alpha, rtol, atol, throw)


def _of_tree(layout: TreeLayout, f: Callable[..., Any], y0: Any, dy0: Any, alpha: Any, ts: Any, **options: Any) -> Any:
    """Return what `fdeint` returns for a state that is a tree of tensors, or complex; `layout` describes the state."""
    args, events = options.pop("args"), options.pop("events")
    function = f if args is None else partial(_with_args, f, args)
    if isinstance(alpha, Tensor) and alpha.ndim and isinstance(y0, Tensor):
        alpha = alpha[..., None]  # the last axis holds the real and imaginary part of a number
    watched = [replace(each, function=layout.function(each.function)) for each in events_of(events)]
    found = fdeint(
        layout.right_hand_side(function),
        layout.parts(y0, "fdeint", "y0"),
        ts,
        alpha,
        dy0=None if dy0 is None else layout.parts(dy0, "fdeint", "dy0"),
        events=watched,
        **options,
    )
    return found.of(layout) if options["full"] else layout.tree(found)


def _with_args(f: Callable[..., Any], args: Any, t: Tensor, y: Any) -> Any:
    """Return f(t, y, args), with `args` before t and y for functools.partial."""
    return f(t, y, args)


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
    full: bool = False,
) -> Any:
    """Return what `fdeint` returns, for a `Method` and a call site of the method's operation that the caller keeps.

    Under autocast f runs as it would elsewhere and its results are cast to the state's dtype; sums over the past are
    not autocast.
    """
    check_untraced("fdeint", "y0")
    call = Call(f, y0, ts, alpha, method, n_steps, dy0, anywhere=True)
    kind = call.like.device.type
    call.casts = present(kind)
    if call.casts is None:
        return call.solved(site, adjoint, params, progress, full)
    with without(kind):
        return call.solved(site, adjoint, params, progress, full)
