"""What power-law attention is in every framework, whose layers have the formula."""

from __future__ import annotations

from typing import Any

from hpfracc_nn import errors

OP = "attention"  # the operation that kernels are registered for

# Below the greatest mask of its row a key is hidden: exp(-1e4) is 0 in every dtype, and what people write for minus
# infinity, such as -1e9 or the least number of any dtype, lies farther. Relative, because a number that is added to a
# whole row changes no weight.
NEGLIGIBLE = 1e4


def checked_orders(owner: str, alpha: Any, heads: int) -> float | tuple[float, ...]:
    """Return one order, or one for each head, or raise."""
    each = alpha if isinstance(alpha, list | tuple) else (alpha,)
    values = tuple(value for value in map(errors.as_float, each) if value is not None)
    if len(values) < len(each):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
            "pass learn_alpha=True to train it."
        )
    if isinstance(alpha, list | tuple) and len(values) != heads:
        raise ValueError(f"{owner}(alpha of {len(values)} values): needs one order, or one for each of {heads} heads.")
    if not all(0 < value <= 2 for value in values):
        raise ValueError(f"{owner}(alpha={alpha}): needs 0 < alpha <= 2; pass 2 for ordinary attention.")
    if 2.0 in values and set(values) != {2.0}:
        raise ValueError(f"{owner}(alpha={alpha}): needs 2 for all heads or none; pass for example 1.99 in its place.")
    return values if isinstance(alpha, list | tuple) else values[0]


def checked_bounds(owner: str, bounds: Any) -> tuple[float, float]:
    """Return where a learned order stays, or raise."""
    low, high = errors.pair(owner, "bounds", bounds, "(0, 2)")
    if not 0 <= low < high <= 2:
        raise ValueError(f"{owner}(bounds={bounds!r}): needs 0 <= low < high <= 2; pass a pair such as (0, 2).")
    return low, high
