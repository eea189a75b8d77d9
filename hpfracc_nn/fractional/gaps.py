"""Samples that are not finite: all before them is as it would be without them, whatever the kernel.

Blocks and transforms spread such a sample over their row, each kernel in its own way, but always to the row's end: a
look at the last results is enough to see that there may be one. Then the operator is computed once more on samples
that are all finite, and its results are NaN from the first sample on that was not.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from numpy import vdot


def is_clear(y: np.ndarray, n: int, width: int, at: int) -> bool:
    """Return whether results [..., n, width], contiguous, are finite at one time, the first or the last."""
    return are_finite(y.reshape(-1)[at::n] if width == 1 else y.reshape(-1, n, width)[:, at])


def are_finite(ends: np.ndarray) -> bool:
    """Return whether all of a few numbers are finite."""
    # The product warns of nothing, and takes a third of the time of a sum. Squares may overflow.
    return isfinite(vdot(ends, ends)) or bool(np.isfinite(ends).all())


def held(x: np.ndarray, ahead: int = 1, *, backwards: bool = False) -> tuple[np.ndarray, np.ndarray] | None:
    """Return `x` with finite samples only and a mask of the replaced ones; None where all are finite.

    From its first sample on that is not finite a row holds the one before it: a jump would cost an FFT digits.

    Args:
        x: [..., n, width], time on the last axis but one.
        ahead: How many samples at the start count in all results; one that is not finite spoils the whole row.
        backwards: The same for the transpose, whose results depend on later samples, and the first `ahead` on all.
    """
    x = x[..., ::-1, :] if backwards else x
    reached, n = np.logical_or.accumulate(~np.isfinite(x), axis=-2), x.shape[-2]
    if not reached[..., -1, :].any():
        return None
    ahead = min(ahead, n)
    if backwards:
        reached[..., n - ahead :, :] |= reached[..., -1:, :]
    else:
        reached |= reached[..., ahead - 1 : ahead, :]
    count = n - reached.sum(axis=-2, keepdims=True)
    last = np.where(count > 0, np.take_along_axis(x, np.maximum(count - 1, 0), axis=-2), 0)
    found = np.where(reached, last, x)
    return (found[..., ::-1, :].copy(), reached[..., ::-1, :].copy()) if backwards else (found, reached)
