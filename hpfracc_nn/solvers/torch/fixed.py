"""Solutions by schemes with fixed steps: states at any times, and the error that twice the steps estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.between import bends, placed
from hpfracc_nn.solvers.collocation import Statistics, tolerances
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch.collocation.problem import TINIEST, by_sample, samples_of
from hpfracc_nn.solvers.torch.solution import Solution
from hpfracc_nn.solvers.torch.state import Field, Layout, State, infinite_at_start, orders_of, size, times_of, without

_AT_ONCE = 1 << 20  # weights that are computed together
_SAME = 1e3  # times the rounding of f: a change of f between calls that is ignored


class CountedField(Field):
    """A right-hand side whose calls are counted.

    Attributes:
        calls: How many calls there were.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.calls, self._uncounted = 0, self._run
        self._run: Callable[[Tensor, Any], Any] = self._counted

    def _counted(self, t: Tensor, y: Any) -> Any:
        self.calls += 1
        return self._uncounted(t, y)


@dataclass(frozen=True, eq=False)
class Steps:
    """The dense output of a solve with fixed steps: see `Path`.

    Attributes:
        field: The right-hand side.
        mesh: The times of the steps, since the start, [n + 1].
        known: The states at these times, [n + 1, *shape].
        orders: alpha's values, [a].
        alpha: The orders as a tensor, [a], where the caller passed a tensor, else None.
        first: f at the start when the equation was solved, to be compared with f when it is evaluated again later, or
            None for no comparison.
    """

    field: Field
    mesh: np.ndarray
    known: Tensor
    orders: np.ndarray
    alpha: Tensor | None
    first: Tensor | None = None

    @property
    def begin(self) -> float:
        """The time at the start."""
        return self.field.begin

    def states(self, elapsed: np.ndarray, derivative: int) -> Tensor:
        """Return the states, or their derivatives in time, at times since the start, [times, *shape]; see `Path`."""
        with without(self.known.device.type):
            return self._between(elapsed, derivative)

    def _between(self, elapsed: np.ndarray, derivative: int) -> Tensor:
        known, layout = self.known, self.field.layout
        step, place = placed(self.mesh, elapsed)
        before, after = (known[torch.as_tensor(step + k, device=known.device)] for k in (0, 1))
        x = self._column(place)
        if not derivative and np.isin(place, (0.0, 1.0)).all():
            return torch.where(x > 0, after, before)
        last = int(step.max()) + 1
        mesh = self.mesh[: last + 1]
        values = layout.as_matrix(self._values(last + 1))
        increases, rows, found = values.diff(dim=1), max(1, _AT_ONCE // last), []
        for begin in range(0, elapsed.size, rows):
            first, others = self._weights(mesh, elapsed[begin : begin + rows], derivative)
            found.append(others.to(known) @ increases + first[..., None].to(known) * values[:, :1])
        bent = layout.as_state(torch.cat(found, 1))
        if not derivative:
            return torch.lerp(before, after, x) + bent
        slopes = (after - before) / self._column(self.mesh[step + 1] - self.mesh[step]) + bent
        return infinite_at_start(self.field, self.orders, elapsed, slopes, known[0])

    def _values(self, count: int) -> Tensor:
        """Return f at the first `count` steps, [count, *shape]; raise ValueError if f at the start is not `first`."""
        found = torch.stack([self.field(n, each) for n, each in enumerate(self.known[:count])])
        if self.first is not None:
            change = size(found[0].detach() - self.first)
            if not change <= _SAME * max(self.field.eps, torch.finfo(found.dtype).eps) * size(self.first):
                raise ValueError(
                    f"Solution(ts=...): needs f as it was when the equation was solved; at the start it now differs by "
                    f"{change:.3g}; evaluate the solution before parameters change, or solve with "
                    "scheme='collocation', which keeps what f was."
                )
        return found

    def _column(self, x: np.ndarray) -> Tensor:
        """Return x, one number for each time, as a tensor that broadcasts to states [times, *shape]."""
        return torch.as_tensor(x).to(self.known).view(-1, *[1] * (self.known.ndim - 1))

    def _weights(self, mesh: np.ndarray, elapsed: np.ndarray, derivative: int) -> tuple[Tensor, Tensor]:
        alpha: Array = self.orders if self.alpha is None else self.alpha
        xp: Namespace = NUMPY if self.alpha is None else TORCH
        first, increases = bends(alpha, mesh, elapsed, xp, derivative)
        return torch.as_tensor(first), torch.as_tensor(increases)

    def unravel(self, states: Tensor, times: np.ndarray, failed: Tensor) -> State:
        """Return states [times, *shape] as the user has them; all samples have a solution."""
        return self.field.layout.unravel(states)

    def continued(self, earlier: Solution, ts: Any, options: dict[str, Any]) -> Solution:
        """Raise ValueError: a solve with fixed steps cannot go on."""
        raise ValueError(
            "Solution.continued: needs scheme='collocation', which can go on; solve anew from the start to the later "
            "time."
        )


def solution_of(path: Steps, outputs: np.ndarray, ys: Tensor) -> Solution:
    """Return the `Solution` of a solve with fixed steps.

    Args:
        path: The steps.
        outputs: The output times, since the start, [times].
        ys: The states at the output times, [times, *shape].
    """
    layout, n_steps = path.field.layout, path.mesh.size - 1
    return Solution(
        torch.from_numpy(path.begin + outputs),
        layout.unravel(ys),
        torch.from_numpy(path.begin + path.mesh),
        torch.full((n_steps,), torch.nan, dtype=torch.float64),
        Statistics(steps=n_steps, evaluations=getattr(path.field, "calls", 0)),
        "finished",
        "",
        (),
        torch.full((samples_of(layout),), torch.nan, dtype=torch.float64),
        path,
        path.begin + float(path.mesh[-1]),
    )


def doubled(
    solve: Callable[..., State],
    scheme: Scheme,
    found: State | Solution,
    ts: Any,
    n_steps: int | None,
    alpha: Any,
    rtol: Any,
    atol: Any,
    throw: bool,
) -> State | Solution:
    """Return `found`, after comparing its error with the tolerances; a `Solution` also gets its error and status.

    The error is estimated by a solve with twice the steps: with p the scheme's order, it is 2**p / (2**p - 1) times the
    change.

    Args:
        solve: Called with `n_steps`, returns the states at `ts`.
        scheme: The scheme of the solve.
        found: The states, [times, *shape], or a solution.
        ts: As of `fdeint`.
        n_steps: As of `fdeint`.
        alpha: As of `fdeint`.
        rtol: As of `fdeint`.
        atol: As of `fdeint`.
        throw: Whether too large an error is raised; else the solution's status is "inaccurate".

    Raises:
        FloatingPointError: The error is larger than the tolerances allow, and `throw` is True.
    """
    times = np.asarray(times_of("fdeint", ts), dtype=np.float64)
    count = times.size - 1 if n_steps is None else n_steps
    with torch.no_grad():
        other = solve(n_steps=2 * count)
    states = found.ys if isinstance(found, Solution) else found
    every = [each if isinstance(each, tuple) else (each,) for each in (states, other)]
    pairs = list(zip(*every, strict=True))
    relative, absolute = tolerances("fdeint", rtol, atol, torch.finfo(pairs[0][0].dtype).eps)
    power = 2 ** scheme.order(float(orders_of("fdeint", alpha).min()))
    errors = tuple(power / (power - 1) * (two - one.detach()) for one, two in pairs)
    allowed = [(absolute + relative * two.abs()).clamp(min=TINIEST) for _, two in pairs]
    parts = [each / most for each, most in zip(errors, allowed, strict=True)]
    layout = Layout(tuple(part.shape[1:] for part in parts), len(parts) > 1, (1,) * (parts[0].ndim - 1))
    flat = parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1)
    sizes = by_sample(flat, layout, samples_of(layout)).amax(1)
    fault: Exception | None = None
    if not bool((sizes <= 1).all()):
        worst = int(torch.nan_to_num(sizes, torch.inf).argmax())
        fault = checks.inaccurate("fdeint", scheme.name, count, float(sizes[worst]), float(times[worst]))
        if throw:
            raise fault
    if not isinstance(found, Solution):
        return found
    error = errors if isinstance(states, tuple) else errors[0]
    status, message = ("finished", "") if fault is None else ("inaccurate", str(fault))
    return replace(found, error=error, status=status, message=message)
