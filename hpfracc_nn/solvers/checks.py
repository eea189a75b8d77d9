"""Checks of the arguments that both frameworks share, and the messages of solves that fail; without a framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors


def named(owner: str, argument: str, value: Any, known: Mapping[str, type], kinds: Sequence[type]) -> Any:
    """Return an option: itself, or that of a name with its defaults.

    Raises:
        ValueError: There is none of that name.
        TypeError: It is neither a name nor an option.
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
    """Return output times as float64.

    Raises:
        ValueError: There are fewer than two, one is not finite, or they do not increase.
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
    """Return what is said of times of that shape, which is none."""
    return (
        f"{owner}(ts of shape {tuple(shape)}): needs two times or more in one axis, the first where y0 is given; pass "
        "for example numpy.linspace(0, 1, 101)."
    )


def fitting_orders(
    owner: str, alpha: tuple[int, ...], shape: tuple[int, ...] | None, several: str = ""
) -> tuple[int, ...]:
    """Return the sizes of alpha's axes, as many as a state of that shape has: 1 where alpha does not vary.

    Args:
        owner: What solves.
        alpha: The shape of alpha.
        shape: That of the state, or None for a state of several arrays, which are joined along one axis.
        several: What such a state is called, for the text.

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
    """Raise unless all orders are in (0, 2), and a derivative is given above 1 and only there.

    Where orders may change, as those that are learned, one may be given that the present ones do not need.

    Raises:
        ValueError: They are not.
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
    """Return what is said of a state, an argument called `name`, in a dtype that is not solved in.

    `convert` is what converts it, such as "to(torch.float32)".
    """
    way_out = f"convert with {name}.{convert}"
    if is_complex:
        way_out = f"pass ({name}.real, {name}.imag), a state of two parts, and write the equation for them"
    return TypeError(f"{owner}({name} of dtype {dtype}): needs float32 or float64; {way_out}.")


def slope_shape(owner: str, slope: Sequence[Any], state: Sequence[Any]) -> ValueError:
    """Return what is said of a derivative at the start whose shapes are not those of y0."""
    return ValueError(
        f"{owner}(dy0 of shape {list(slope)}): needs the shape of y0, {list(state)}; pass a derivative for each entry."
    )


WITH_NEWTON = "take more steps, or raise the tolerance or the iterations of Newton(...)"
WITH_FIXED_POINT = "take more steps, or pass roots=Newton() to the scheme"


class NotSolved(RuntimeError):
    """The equation of a step has not been solved to the tolerance."""


def diverged(owner: str, n: int, t: float, size: float) -> FloatingPointError:
    """Return what is said where the solution is not finite.

    Args:
        owner: What solves.
        n: The step.
        t: Its time.
        size: Of the state before.
    """
    return FloatingPointError(
        f"{owner}: the solution diverged at step {n}, t={t:g}, where it was {size:.3g} one step before; take more "
        "steps, or an implicit scheme such as 'trapezoid', if the equation has a solution there."
    )


class StepLimit(RuntimeError):
    """A solve to a tolerance has taken all the steps that it may.

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
    """Return what is said where `max_steps` have not led to the end: how far they came, and the step `h` there."""
    return StepLimit(
        f"{owner}(max_steps={max_steps}): reached t={t:g} of {end:g}, where a step is {h:.3g}; pass a larger max_steps "
        "or larger tolerances, above what is noise in f, or breakpoints where f jumps."
    )


def stuck(owner: str, n: int, t: float, h: float, size: float) -> FloatingPointError:
    """Return what is said where no step is short enough.

    Args:
        owner: What solves.
        n: The step.
        t: Its time.
        h: The last length that was tried.
        size: Of the state there.
    """
    return FloatingPointError(
        f"{owner}: at step {n}, t={t:g}, steps down to {h:.3g} were too long for the tolerance, for a state of size "
        f"{size:.3g}: the solution may end there, or f may be undefined, jump or be noisy; stop before, pass "
        "breakpoints where f jumps, or raise rtol and atol."
    )


def inaccurate(owner: str, scheme: str, n_steps: int, error: float, t: float) -> FloatingPointError:
    """Return what is said where twice the steps lead elsewhere.

    Args:
        owner: What solves.
        scheme: By its name.
        n_steps: Of the solution.
        error: Its estimate, as a part of what is allowed.
        t: Where it is largest.
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
    """Return what is said where steps of a scheme are too long for a decay.

    Args:
        owner: What solves.
        scheme: By its name.
        n: The step.
        t: Its time.
        size: Of the state.
        start: What it began with.
        limit: The largest dt**alpha times the rate of a decay that the scheme is stable with; 0 where there is none.
        decay: What that is here.
        steps: That would do; infinite where none would.
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
    """Return what is said where f is not finite.

    Args:
        owner: What solves.
        n: The step.
        t: Its time.
        size: Of the state.
        how: It came about, for the text.
    """
    return FloatingPointError(
        f"{owner}(f): needs finite values; at step {n}, t={t:g}, f returned one that is not for a state of size "
        f"{size:.3g}{how}; keep f defined there, or stop before."
    )


def singular(label: str, argument: str, t: float, is_nan: bool, size: float) -> FloatingPointError:
    """Return what is said where a right-hand side has no value at the start.

    Args:
        label: Of the call, with the argument.
        argument: What the right-hand side is called there.
        t: The start.
        is_nan: Whether it is not infinite either.
        size: Of the state.
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
    """Return what is said where the equation of a step is not solved.

    Args:
        owner: What solves.
        n: The step.
        t: Its time.
        iterations: After which it was given up.
        way_out: What to do.
        what: Was not solved.
        change: The last one, or None where it is not known.
    """
    last = "" if change is None else f"; the last change was {change:.3g}"
    return NotSolved(
        f"{owner}: {what} of step {n}, t={t:g}, did not converge in {iterations} iterations{last}; {way_out}."
    )


def check_stochastic_orders(owner: str, alpha: Any, values: np.ndarray) -> None:
    """Raise unless orders are in (1/2, 1].

    Args:
        owner: Who asks, for messages.
        alpha: The orders as they were given.
        values: Their numbers.
    """
    if not ((values > 0.5) & (values <= 1)).all():
        raise ValueError(f"{owner}(alpha={alpha}): needs 1/2 < alpha <= 1; pass for example 0.8.")


def stochastic_bounds(owner: str, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return where learned orders stay, (1/2, 1) where nothing is said; or raise."""
    low, high = (0.5, 1.0) if bounds is None else bounds
    if not 0.5 <= low < high <= 1:
        raise ValueError(f"{owner}(bounds={(low, high)}): needs 1/2 <= low < high <= 1; pass for example (0.5, 1).")
    return low, high
