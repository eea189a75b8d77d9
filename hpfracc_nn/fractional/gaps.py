"""Samples that are NaN or infinite: results before such a sample are as without it, whatever the kernel.

Blocks and transforms spread a sample that is not finite over its row, each kernel in its own way, but always to the
row's end: the last results show whether there may be one. Then the operator is computed once more on samples that are
all finite, and its results are set to NaN from the first sample on that was not.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from numpy import vdot


def is_clear(y: np.ndarray, n: int, width: int, at: int) -> bool:
    """Return whether contiguous results [..., n, width] are finite at time index `at`, the first or the last."""
    return are_finite(y.reshape(-1)[at::n] if width == 1 else y.reshape(-1, n, width)[:, at])


def are_finite(ends: np.ndarray) -> bool:
    """Return whether all numbers of a small array are finite."""
    # The product warns of nothing, and takes a third of the time of a sum. Squares may overflow.
    return isfinite(vdot(ends, ends)) or bool(np.isfinite(ends).all())


def carried_forward(x: np.ndarray, ahead: int = 1, *, backwards: bool = False) -> tuple[np.ndarray, np.ndarray] | None:
    """Return `x` with finite samples only, and a mask of the replaced ones; None where all are finite.

    From a signal's first sample on that is not finite, all are replaced by the last one before it, or by 0 where there
    is none: a jump would cost an FFT digits.

    Args:
        x: [..., n, width], time on the last axis but one.
        ahead: How many samples at the start count in all results; if one of these is not finite, all of the signal is
            replaced.
        backwards: Whether to do the same for the transpose, whose results depend on later samples, and the first
            `ahead` results on all samples.
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
