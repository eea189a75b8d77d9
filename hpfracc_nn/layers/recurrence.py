"""What recurrent layers of every framework remember by: m_t = sum over k >= 1 of a_k c_(t-k), a power-law average.

The weights are a_k = -w_k, with (1 - z)**alpha = sum of w_k z**k (Grünwald's weights): for 0 < alpha <= 1 none of them
is negative, they go like alpha k**(-1-alpha) / Gamma(1 - alpha), and they add up to 1.
"""

from __future__ import annotations

import math

from hpfracc_nn.fractional.definitions import Definition, GrunwaldLetnikov
from hpfracc_nn.fractional.schemes.exponentials import FITS, Nodes, exponentials

_EXACT = 4  # times the lags that are exact anyway: up to so many, all are


def averaging(owner: str, definition: Definition) -> GrunwaldLetnikov:
    """Return the difference whose weights the memory has, or raise where they are no average's.

    Args:
        owner: The layer, for messages.
        definition: With the layer's order, or with the bounds of one that is learned.

    Raises:
        ValueError: Some order is not in 0 < alpha <= 1, or some bound not in [0, 1].
    """
    assert isinstance(definition, GrunwaldLetnikov)
    bounds, lowest = definition.bounds, 0.0
    if bounds is None:
        bounds, lowest = (min(definition.orders), max(definition.orders)), math.ulp(0.0)
    if bounds[0] < lowest or bounds[1] > 1:
        what = f"bounds={bounds}" if definition.bounds is not None else f"alpha={definition.alpha}"
        raise ValueError(
            f"{owner}({what}): needs 0 < alpha <= 1, where the weights of the past are an average; "
            "alpha=1 is the ordinary cell."
        )
    return definition


def memory_nodes(definition: Definition, n: int, dtype: str, window: int | None) -> Nodes | None:
    """Return the exponentials that stand for the weights on n steps, or None where all of them are exact.

    Args:
        definition: The difference; with an array of a framework as its order, of all orders within its bounds.
        n: Steps.
        dtype: What it is computed in.
        window: The largest lag that counts, or None.
    """
    if window is not None or n <= _EXACT * FITS[dtype].first:
        return None
    return exponentials(definition, n + 1, dtype)
