"""JAX arrays: their namespace, the dtypes that operators accept, and symbolic or padded sizes.

The namespace makes float64 arrays where 64 bit types are enabled: see `float64.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.export import is_symbolic_dim
from jax.scipy import special

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition, FourierMultiplier
from hpfracc_nn.fractional.namespace import NAMESPACES, Namespace

Array = jax.Array


class JaxNamespace:
    """The functions that formulas call, by JAX; see `fractional.namespace.Namespace`."""

    float32 = jnp.float32
    result_type = staticmethod(jnp.result_type)
    moveaxis = staticmethod(jnp.moveaxis)
    empty_like = staticmethod(jnp.empty_like)
    exp = staticmethod(jnp.exp)
    log = staticmethod(jnp.log)
    log1p = staticmethod(jnp.log1p)
    expm1 = staticmethod(jnp.expm1)
    cos = staticmethod(jnp.cos)
    sin = staticmethod(jnp.sin)
    acos = staticmethod(jnp.arccos)
    floor = staticmethod(jnp.floor)
    gammaln = staticmethod(special.gammaln)
    iscomplexobj = staticmethod(jnp.iscomplexobj)
    abs = staticmethod(jnp.abs)
    angle = staticmethod(jnp.angle)
    polygamma = staticmethod(special.polygamma)
    expit = staticmethod(jax.nn.sigmoid)
    sum = staticmethod(jnp.sum)
    max = staticmethod(jnp.max)
    cumulative_prod = staticmethod(jnp.cumprod)
    diff = staticmethod(jnp.diff)
    nan_to_num = staticmethod(jnp.nan_to_num)
    flip = staticmethod(jnp.flip)
    concat = staticmethod(jnp.concatenate)
    stack = staticmethod(jnp.stack)
    permute_dims = staticmethod(jnp.transpose)
    broadcast_to = staticmethod(jnp.broadcast_to)

    @property
    def float64(self) -> Any:
        """The dtype of double precision: float64 where 64 bit types are enabled, else float32."""
        return widest()

    def asarray(self, value: Any) -> Array:
        return jnp.asarray(value, dtype=widest())

    def subtract(self, a: Array, b: Array, *, out: Array | None = None) -> Array:
        if out is not None:
            raise TypeError("JAX's arrays cannot be written into; use what is returned.")
        return a - b

    def addcmul(self, x: Array, y: Array, z: Array) -> Array:
        return x + y * z

    def where(self, condition: Array, x: Any, y: Any) -> Array:
        return jnp.where(condition, x, y)

    def constant(self, values: np.ndarray, like: Array) -> Array:
        if isinstance(values, np.ndarray) and not np.iscomplexobj(values):
            values = values.astype(widest())  # a copy: JAX lowers an array once, which may be read in float64 elsewhere
        found = jnp.asarray(values)
        return found if jnp.iscomplexobj(found) else found.astype(widest())

    def matmul(self, a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

    def tensordot(self, a: Array, b: Array) -> Array:
        return jnp.tensordot(a, b, 1, precision=jax.lax.Precision.HIGHEST)

    def fft(self, x: Array, *, norm: str | None = None) -> Array:
        return jnp.fft.fft(x, norm=norm)

    def ifft(self, x: Array, *, norm: str | None = None) -> Array:
        return jnp.fft.ifft(x, norm=norm)

    def rfft(self, x: Array, n: int, *, axis: int) -> Array:
        return jnp.fft.rfft(x, n, axis)

    def irfft(self, x: Array, n: int, *, axis: int) -> Array:
        return jnp.fft.irfft(x, n, axis)

    def toeplitz(self, column: Array, length: int) -> Array:
        lag = np.subtract.outer(np.arange(length), np.arange(length)).T
        inside = (lag >= 0) & (lag < column.shape[-1])
        padded = jnp.concatenate([0 * column[..., :1], column], axis=-1)
        return padded[..., np.where(inside, lag + 1, 0)]

    def spectrum(self, column: Array, length: int) -> Array:
        return jnp.fft.rfft(self.asarray(column), length).astype(self.complex_of(column.dtype))

    def complex_of(self, dtype: Any) -> Any:
        return np.result_type(dtype, np.complex64)

    def astype(self, x: Array, dtype: Any) -> Array:
        return x.astype(dtype)

    def like(self, x: Array, other: Array) -> Array:
        return x.astype(other.dtype)

    def contiguous(self, x: Array) -> Array:
        return x

    def zeros(self, shape: Sequence[int], like: Array) -> Array:
        return jnp.zeros(shape, like.dtype)

    def cumulative_sum(self, x: Array, *, axis: int, dtype: Any = None) -> Array:
        whole = jnp.dtype(jnp.result_type(int))
        would_wrap = x.dtype.kind in "biu" and x.dtype.itemsize < whole.itemsize
        return jnp.cumsum(x, axis, dtype=whole if dtype is None and would_wrap else dtype)

    def fftfreq(self, n: int, d: float, like: Array) -> Array:
        return self.constant(np.fft.fftfreq(n, d), like)

    def rfftfreq(self, n: int, d: float, like: Array) -> Array:
        return self.constant(np.fft.rfftfreq(n, d), like)

    def part(self, x: Array, begin: int, end: int | None, *, axis: int) -> Array:
        return lax.slice_in_dim(x, begin, end, axis=axis)

    def pad(self, x: Array, before: int, after: int = 0, *, axis: int) -> Array:
        widths = [(0, 0)] * x.ndim
        widths[axis] = before, after
        return jnp.pad(x, widths)

    def chunk_matmul(self, data: Array, matrix: Array) -> Array:
        return jnp.einsum("bcmlw,clk->bcmkw", data, matrix, precision=lax.Precision.HIGHEST)

    def convolve(self, a: Array, b: Array) -> Array:
        n = a.shape[-1]
        return jnp.fft.irfft(jnp.fft.rfft(a, 2 * n) * jnp.fft.rfft(b, 2 * n), 2 * n)[..., :n]

    def take(self, x: Array, index: np.ndarray, *, axis: int) -> Array:
        return x[(slice(None),) * (axis % x.ndim) + (index,)]


JAX: Namespace = JaxNamespace()
NAMESPACES["jax"] = JAX


def widest() -> Any:
    """Return float64 where 64 bit types are enabled here and now, else float32."""
    return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32  # type: ignore[attr-defined]


_COMPUTED_IN = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


def of_numpy(x: Any) -> Any:
    """Return a NumPy array as a JAX array, in JAX's dtype for it; other objects unchanged."""
    return jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x


def at_least_single(dtype: Any) -> Any:
    """Return float32 for half precision and other dtypes unchanged, whatever promotion the process allows."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def computed_in(owner: str, x: Array, definition: Definition | FourierMultiplier | None = None) -> str:
    """Return the dtype, by name, that an operator on `x` is computed in: float32 or float64.

    Without a definition the dtype is that of operators that do not ask for float64 (`Definition.is_wide`).

    Raises:
        TypeError: `x` is no JAX array of float16, bfloat16, float32 or float64.
    """
    if not isinstance(x, jax.Array):
        raise TypeError(f"{owner}(x of type {type(x).__name__}): needs a JAX array; pass jax.numpy.asarray(x).")
    dtype = _COMPUTED_IN.get(x.dtype.name)
    if dtype is None:
        raise TypeError(
            f"{owner}(x of dtype {x.dtype}): needs float16, bfloat16, float32 or float64; "
            + (
                "take x.real and x.imag apart."
                if jnp.issubdtype(x.dtype, jnp.complexfloating)
                else "convert with x.astype(jax.numpy.float32)."
            )
        )
    return jnp.dtype(widest()).name if definition is not None and definition.is_wide else dtype


ASSUMED = 256  # a size that is left open, for plans: which kernel runs changes only the rounding of the result


def assumed(size: Any) -> int:
    """Return the size that a plan is chosen for: itself, or `ASSUMED` where it is symbolic."""
    return ASSUMED if is_symbolic_dim(size) else size


def fits(count: int, size: Any) -> bool:
    """Return whether `size` rows fit into one part of `count` rows; a symbolic size, which is never split, does."""
    return is_symbolic_dim(size) or size <= count


def check_known(owner: str, name: str, size: Any) -> None:
    """Raise ValueError where a size that the weights depend on is symbolic."""
    if is_symbolic_dim(size):
        raise ValueError(
            f"{owner}({name}={size}): needs a number that is known when the call is traced, because weights are made "
            "for it; leave other axes open, and export one program for each number of samples."
        )


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
    """Return n rounded up to a bucket: 32, 40, 48, 56, 64, 80, 96, ..., four of them per octave."""
    if n <= 32:
        return 32
    step = 1 << ((n - 1).bit_length() - 3)
    return -(-n // step) * step
