"""Checks of arguments that both frameworks share, and the errors of solves that fail; without a framework.

Functions that return an exception build its message and leave raising it to the caller. Their `owner` is the name of
the public function or class whose call failed, which begins the message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors


def named(owner: str, argument: str, value: Any, known: Mapping[str, type], kinds: Sequence[type]) -> Any:
    """Return an option: `value` itself, or where `value` is a name, the option of that name with its defaults.

    Args:
        owner: Name of the public function, for messages.
        argument: Name of the argument, for messages.
        value: A key of `known`, or an object of one of `kinds`.
        known: Option classes by name.
        kinds: All option classes that are allowed.

    Raises:
        ValueError: `value` is a name that is not in `known`.
        TypeError: `value` is neither a name nor of one of `kinds`.
    """
    if isinstance(value, str):
        return known[errors.one_of(owner, argument, value, known)]()
    if not isinstance(value, tuple(kinds)):
        names = ", ".join(map(repr, sorted(known)))
        classes = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"{owner}({argument} of type {type(value).__name__}): needs one of {names}, or an object of {classes}; "
            "pass one of these."
        )
    return value


def increasing(owner: str, ts: np.ndarray) -> np.ndarray:
    """Return output times as a float64 array.

    Raises:
        ValueError: There are fewer than two times, one is not finite, they do not increase, or have not one axis.
    """
    times = np.asarray(ts, dtype=np.float64)
    if times.ndim != 1 or times.size < 2:
        raise ValueError(times_message(owner, times.shape))
    if not np.isfinite(times).all():
        i = int(np.argmin(np.isfinite(times)))
        raise ValueError(f"{owner}(ts=...): times must be finite; ts[{i}]={times[i]}; leave it out.")
    falls = np.flatnonzero(np.diff(times) <= 0)
    if falls.size:
        i = int(falls[0]) + 1
        raise ValueError(
            f"{owner}(ts=...): times must increase; ts[{i}]={times[i]:g} follows ts[{i - 1}]={times[i - 1]:g}; sort "
            "them and leave out what comes twice."
        )
    return times


def times_message(owner: str, shape: tuple[int, ...]) -> str:
    """Return the error message for output times of a wrong shape."""
    return (
        f"{owner}(ts of shape {tuple(shape)}): needs two times or more in one axis, the first where y0 is given; pass "
        "for example numpy.linspace(0, 1, 101)."
    )


def fitting_orders(
    owner: str, alpha: tuple[int, ...], shape: tuple[int, ...] | None, several: str = ""
) -> tuple[int, ...]:
    """Return alpha's shape padded with 1 to as many axes as the state has; all 1 where alpha is a single number.

    Args:
        owner: Name of the public function, for the message.
        alpha: The shape of alpha.
        shape: The shape of the state, or None for a state of several arrays, which are joined along one axis.
        several: What a state of several arrays is called in the message.

    Raises:
        ValueError: alpha does not broadcast to the state.
    """
    if math.prod(alpha) == 1:
        return (1,) * (1 if shape is None else len(shape))
    if shape is None:
        raise ValueError(
            f"{owner}(alpha of shape {tuple(alpha)}): needs one alpha for {several}; join them into one and pass an "
            "alpha for each of its entries."
        )
    padded = (1,) * (len(shape) - len(alpha)) + tuple(alpha)
    if len(padded) != len(shape) or any(size not in (1, shape[axis]) for axis, size in enumerate(padded)):
        raise ValueError(
            f"{owner}(alpha of shape {tuple(alpha)}): needs one number, or a shape that broadcasts to y0's "
            f"{tuple(shape)}; pass one alpha for all, or one for each entry along some of y0's axes."
        )
    return padded


def orders(owner: str, alpha: np.ndarray, has_slope: bool, may_change: bool = False) -> None:
    """Raise ValueError unless all orders are in (0, 2) and dy0 is passed exactly where an order is above 1.

    Args:
        owner: Name of the public function, for messages.
        alpha: The orders.
        has_slope: Whether dy0, the derivative at the start, is passed.
        may_change: Whether the orders may change, as learned ones do; dy0 may then be passed for orders up to 1 too.

    Raises:
        ValueError: An order is out of range, or dy0 is missing or superfluous.
    """
    wrong = alpha[~((alpha > 0) & (alpha < 2))]
    if wrong.size:
        system = "write an equation of higher order as a system, one entry of the state for each derivative"
        ways = [system] if wrong[0] >= 2 else [] if may_change else ["pass an order in between"]
        ways += ["keep a learned order within bounds"] if may_change else []
        raise ValueError(f"{owner}(alpha={wrong[0]:g}): needs 0 < alpha < 2; {'; '.join(ways)}.")
    if (alpha > 1).any() and not has_slope:
        raise ValueError(
            f"{owner}(alpha={alpha.max():g}): needs the derivative at the start above alpha = 1; pass dy0, of y0's "
            f"shape{', or keep a learned order below 1' if may_change else ''}."
        )
    if has_slope and not may_change and not (alpha > 1).any():
        raise ValueError(
            f"{owner}(dy0): is a condition for orders above 1, and alpha is {alpha.max():g}; leave dy0 out."
        )


def wrong_dtype(owner: str, name: str, dtype: Any, is_complex: bool, convert: str) -> TypeError:
    """Return the TypeError for a state, the argument called `name`, of a dtype in which no solver works.

    `convert` is the call that converts an array, such as "to(torch.float32)".
    """
    way_out = f"convert with {name}.{convert}"
    if is_complex:
        way_out = f"pass ({name}.real, {name}.imag), a state of two parts, and write the equation for them"
    return TypeError(f"{owner}({name} of dtype {dtype}): needs float32 or float64; {way_out}.")


def slope_shape(owner: str, slope: Sequence[Any], state: Sequence[Any]) -> ValueError:
    """Return the ValueError for a derivative at the start, dy0, whose shapes are not those of y0."""
    return ValueError(
        f"{owner}(dy0 of shape {list(slope)}): needs the shape of y0, {list(state)}; pass a derivative for each entry."
    )


WITH_NEWTON = "take more steps, or raise the tolerance or the iterations of Newton(...)"
WITH_FIXED_POINT = "take more steps, or pass roots=Newton() to the scheme"


class NotSolved(RuntimeError):
    """The error of a solve in which the equation of a step was not solved to the tolerance."""


def diverged(owner: str, n: int, t: float, size: float) -> FloatingPointError:
    """Return the error for a solution that is no longer finite.

    Args:
        owner: Name of the public function.
        n: Index of the step that is not finite.
        t: The time of step n.
        size: Largest absolute value of the state one step before.
    """
    return FloatingPointError(
        f"{owner}: the solution diverged at step {n}, t={t:g}, where it was {size:.3g} one step before; take more "
        "steps, or an implicit scheme such as 'trapezoid', if the equation has a solution there."
    )


class StepLimit(RuntimeError):
    """The error of a solve to a tolerance that needs more than `max_steps` steps.

    Examples:
        >>> try:
        ...     fdeint(
        ...         lambda t, y: -y, torch.ones(1).double(), [0, 1], 0.5, rtol=1e-8, max_steps=2
        ...     )
        ... except StepLimit as error:
        ...     print(str(error)[:31])
        fdeint(max_steps=2): reached t=
    """


def too_many(owner: str, max_steps: int, t: float, end: float, h: float) -> StepLimit:
    """Return the error for a solve whose `max_steps` steps reached time t and not `end`; `h` is the step size at t."""
    return StepLimit(
        f"{owner}(max_steps={max_steps}): reached t={t:g} of {end:g}, where a step is {h:.3g}; pass a larger max_steps "
        "or larger tolerances, above what is noise in f, or breakpoints where f jumps."
    )


def stuck(owner: str, n: int, t: float, h: float, size: float) -> FloatingPointError:
    """Return the error for a solve that cannot go on, because no step from time t is short enough for the tolerance.

    Args:
        owner: Name of the public function.
        n: Index of the step.
        t: The time at which the step begins.
        h: The last step size that was tried.
        size: Largest absolute value of the state at t.
    """
    return FloatingPointError(
        f"{owner}: at step {n}, t={t:g}, steps down to {h:.3g} were too long for the tolerance, for a state of size "
        f"{size:.3g}: the solution may end there, or f may be undefined, jump or be noisy; stop before, pass "
        "breakpoints where f jumps, or raise rtol and atol."
    )


def below_rounding(owner: str, n: int, t: float, size: float, allowed: float, dtype: str) -> FloatingPointError:
    """Return the error for a solve that cannot go on, because the error it allows is below the rounding of its states.

    Args:
        owner: Name of the public function.
        n: Index of the step.
        t: The time at which the step begins.
        size: Largest absolute value that the state has had.
        allowed: The error that rtol and atol allow the state at t.
        dtype: Name of the states' dtype.
    """
    way_out = "raise rtol and atol" if dtype == "float64" else "pass states in float64, or raise rtol and atol"
    return FloatingPointError(
        f"{owner}: at step {n}, t={t:g}, no step is short enough for the tolerance, because the error that rtol and "
        f"atol allow, {allowed:.2g}, is about as small as the rounding of states that were {size:.3g} in {dtype}; "
        f"{way_out}."
    )


def inaccurate(owner: str, scheme: str, n_steps: int, error: float, t: float) -> FloatingPointError:
    """Return the error for a solution of fixed steps whose error, estimated by twice the steps, is above the tolerance.

    Args:
        owner: Name of the public function.
        scheme: The scheme's name.
        n_steps: How many steps the solution has.
        error: The largest estimated error, relative to what rtol and atol allow.
        t: The time at which the error is largest.
    """
    return FloatingPointError(
        f"{owner}(scheme={scheme!r}, n_steps={n_steps}): needs steps whose error is within rtol and atol; at t={t:g} "
        f"the change by {2 * n_steps} steps says that it is {error:.3g} times as large; take more steps, or leave "
        "scheme and n_steps out, so that steps follow the tolerance."
    )


def exploded(
    owner: str,
    scheme: str,
    n: int,
    t: float,
    size: float,
    start: float,
    limit: float,
    decay: float,
    steps: float,
) -> FloatingPointError:
    """Return the error for a solution that exploded, because the steps of a scheme are too long for a decay.

    Args:
        owner: Name of the public function.
        scheme: The scheme's name.
        n: Index of the step.
        t: The time of step n.
        size: Absolute value of the entry of the state that exploded.
        start: Largest absolute value that the solution began with.
        limit: The largest dt**alpha times the rate of a decay with which the scheme is stable; 0 if there is none.
        decay: dt**alpha times the rate of the decay in this solve.
        steps: The number of steps with which the scheme would be stable; infinite if there is none.
    """
    way_out = f"take {_rounded_up(steps)} steps or more, or "
    if owner == "fdeint":
        way_out += "scheme='trapezoid', which is stable with any"
    else:
        way_out += "solve by fdeint with scheme='trapezoid' where the noise does not matter"
    if not steps < math.inf:
        way_out = "take scheme='heun' or 'euler'"
    return FloatingPointError(
        f"{owner}: the solution exploded: at step {n}, t={t:g}, it is {size:.3g} and began with {start:.3g}, because "
        f"{scheme!r} is stable where the rate of a decay times dt**alpha is up to {limit:.3g} and here that is "
        f"{decay:.3g}; {way_out}."
    )


def _rounded_up(steps: float) -> str:
    """Return a number of steps, rounded up to two significant digits, as text for an error message."""
    if not steps < math.inf:
        return "infinitely many"
    unit = 10.0 ** (math.floor(math.log10(steps)) - 1)
    return f"{math.ceil(steps / unit) * unit:.2g}" if steps > 1e6 else str(int(math.ceil(steps / unit) * unit))


def undefined(owner: str, n: int, t: float, size: float, how: str = "") -> FloatingPointError:
    """Return the error for a right-hand side f that is not finite at a finite state.

    Args:
        owner: Name of the public function.
        n: Index of the step.
        t: The time of step n.
        size: Largest absolute value of the state.
        how: Words for the message that say how the state came about; may be empty.
    """
    return FloatingPointError(
        f"{owner}(f): needs finite values; at step {n}, t={t:g}, f returned one that is not for a state of size "
        f"{size:.3g}{how}; keep f defined there, or stop before."
    )


def singular(label: str, argument: str, t: float, is_nan: bool, size: float) -> FloatingPointError:
    """Return the error for a right-hand side that is NaN or infinite at the start of the equation.

    Args:
        label: The call and its argument, such as "fdeint(f)", which begin the message.
        argument: The name of the right-hand side in the message, such as "f".
        t: The time of the start.
        is_nan: Whether the right-hand side is NaN; else it is infinite.
        size: Largest absolute value of the state.
    """
    how = "NaN" if is_nan else "infinite"
    return FloatingPointError(
        f"{label}: needs finite values; {argument} is {how} at t = {t:g}, where the equation begins, "
        f"for a state of size {size:.3g}; return a finite value there, or solve for what remains when the "
        "singular part of the solution is subtracted."
    )


def unsolved(
    owner: str, n: int, t: float, iterations: int, way_out: str, what: str = "the equation", change: float | None = None
) -> NotSolved:
    """Return the error for the equation of a step that iterations did not solve.

    Args:
        owner: Name of the public function.
        n: Index of the step.
        t: The time of step n.
        iterations: The number of iterations that were made.
        way_out: Words that say what the caller can do.
        what: What was not solved, such as "the equation".
        change: The change in the last iteration, or None where it is not known.
    """
    last = "" if change is None else f"; the last change was {change:.3g}"
    return NotSolved(
        f"{owner}: {what} of step {n}, t={t:g}, did not converge in {iterations} iterations{last}; {way_out}."
    )


def check_stochastic_orders(owner: str, alpha: Any, values: np.ndarray) -> None:
    """Raise ValueError unless all orders are in (1/2, 1].

    Args:
        owner: Name of the public class, for the message.
        alpha: The orders as the caller passed them, for the message.
        values: The orders as an array of numbers.
    """
    if not ((values > 0.5) & (values <= 1)).all():
        raise ValueError(f"{owner}(alpha={alpha}): needs 1/2 < alpha <= 1; pass for example 0.8.")


def stochastic_bounds(owner: str, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return the bounds of learned orders, (1/2, 1) for None; raise ValueError unless 1/2 <= low < high <= 1."""
    low, high = (0.5, 1.0) if bounds is None else bounds
    if not 0.5 <= low < high <= 1:
        raise ValueError(f"{owner}(bounds={(low, high)}): needs 1/2 <= low < high <= 1; pass for example (0.5, 1).")
    return low, high
