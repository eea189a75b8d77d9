"""What is said of a solve that went wrong: raised where it is concrete, by checkify where it is traced."""

from __future__ import annotations

import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.jax.arguments import is_traced
from hpfracc_nn.solvers.jax.right_side import RightSide
from hpfracc_nn.solvers.jax.solving import Inputs, Solution
from hpfracc_nn.solvers.schemes import Newton, Scheme


def checked_solution(owner: str, scheme: Scheme, right_side: RightSide, inputs: Inputs, found: Solution) -> Array:
    """Return the states of a solution, or raise where they are not finite; under checkify where they are traced.

    Raises:
        FloatingPointError: It is not, or f is not.
        faults.NotSolved: The equation of a step was not solved.
    """
    if is_traced(found.states):
        solved = checked(found.states, found.is_solved.all(), f"{owner}: the equation of a step did not converge.")
        return checked(solved, jnp.isfinite(solved).all(), f"{owner}: the solution is not finite.")
    states = np.asarray(found.states)
    is_good = np.isfinite(states).reshape(states.shape[0], -1).all(-1)
    if is_good.all():
        return found.states
    n = int(np.argmin(is_good))
    t, size = float(inputs.times[n]), float(np.abs(states[n - 1]).max())
    is_solved = np.asarray(found.is_solved)
    f = right_side.field(inputs.read)
    for k in (n - 1, n):
        at = states[min(k, n - 1)]
        is_moderate = np.abs(at).max() < np.finfo(at.dtype).max ** 0.1
        if is_moderate and not np.isfinite(np.asarray(f(inputs.times[k], jnp.asarray(at)))).all():
            if k == 0:
                value = np.asarray(f(inputs.times[0], jnp.asarray(at)))
                raise checks.singular(
                    f"{owner}(f)", "f", float(inputs.times[0]), bool(np.isnan(value).any()), float(np.abs(at).max())
                )
            raise checks.undefined(owner, k, float(inputs.times[k]), float(np.abs(at).max()))
    if not is_solved[n - 1]:
        roots = scheme.roots  # type: ignore[attr-defined]  # only these solve equations
        way_out = checks.WITH_NEWTON if isinstance(roots, Newton) else checks.WITH_FIXED_POINT
        raise checks.unsolved(owner, n, t, roots.iterations, way_out)
    raise checks.diverged(owner, n, t, size)
