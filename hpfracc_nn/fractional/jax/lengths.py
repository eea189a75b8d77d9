"""Series of many lengths, padded to few: XLA compiles a function anew for each shape that it meets."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors


def pad_to_bucket(x: Any, dim: int = -1) -> tuple[Any, int]:
    """Return `x` with zeros after its last sample along `dim`, and how many samples are its own.

    There are four padded lengths to the octave, none below 32, so that less than a quarter is added. An operator with
    side "left" is causal: its first n results are those of the n samples. The number of samples may be traced: mask
    with it what is summed over time.

    Args:
        x: A NumPy array or a JAX array. NumPy's are padded by NumPy: nothing is compiled.
        dim: The time axis.

    Returns:
        The padded array [..., padded n, ...] and n.

    Raises:
        ValueError: `dim` is no axis of `x`.

    Examples:
        >>> x, n = pad_to_bucket(np.ones((8, 250)))
        >>> x.shape, n
        ((8, 256), 250)
    """
    own = jnp if isinstance(x, jax.Array) else np
    x = own.asarray(x)
    axis = errors.axis("pad_to_bucket", dim, x.ndim)
    n = x.shape[axis]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, _padded(n) - n)
    return own.pad(x, widths), n


def _padded(n: int) -> int:
    """Return the next of 32, 40, 48, 56, 64, 80, 96, ...: four to the octave."""
    if n <= 32:
        return 32
    step = 1 << ((n - 1).bit_length() - 3)
    return -(-n // step) * step
