"""What is said of a solve that went wrong, without a framework."""

from __future__ import annotations

import math

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
    """Return a number of two digits that is not smaller."""
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
