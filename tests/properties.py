"""How properties are drawn: the same examples in every run, a few in the fast suite and many in the slow one."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MANY = 200


def holds_for(few: int, many: int = MANY, **strategies: st.SearchStrategy[Any]) -> Callable[[Callable], Callable]:
    """Return a decorator that makes of a property the test that it holds for `few` examples, and for `many`."""
    counts = [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.slow)]

    def tested(claim: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("count", counts)
        def test(count: int) -> None:
            # A busy machine is no fault of the examples.
            quiet = [HealthCheck.too_slow]
            profile = settings(
                max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=quiet
            )
            profile(given(**strategies)(claim))()

        test.__doc__ = claim.__doc__
        return test

    return tested


def between(low: float, high: float) -> st.SearchStrategy[float]:
    """Return numbers of the closed interval, its ends and whole numbers among them more often than by chance."""
    whole = [float(k) for k in range(-2, 4) if low <= k <= high]
    return st.one_of(st.sampled_from([low, high, *whole]), st.floats(low, high, allow_subnormal=False))
