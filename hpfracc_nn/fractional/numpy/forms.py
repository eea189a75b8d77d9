"""The two forms in which weights reach a kernel for NumPy arrays; `torch/forms.py` is the twin."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.fft import next_fast_len, rfft

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.numba import kernel
from hpfracc_nn.fractional.shelf import Charge, free

MATRIX_KEPT = 1 << 21  # bytes: a larger matrix is built at every product, or the kept ones would fill the memory


@dataclass(frozen=True, eq=False)
class ColumnForm:
    """The weights as they are, [channels, n]; `charge` is told what is made of them."""

    column: np.ndarray
    charge: Charge = field(default=free, repr=False)

    @property
    def matrix(self) -> np.ndarray:
        """The lower triangular matrices [channels, n, n] with these first columns."""
        channels, n = self.column.shape
        is_small = channels * n * n * self.column.itemsize <= MATRIX_KEPT
        return self._kept_matrix if is_small else toeplitz(self.column)

    @cached_property
    def _kept_matrix(self) -> np.ndarray:
        return self.charge(toeplitz(self.column))

    @cached_property
    def spectrum(self) -> np.ndarray:
        """The column's transform in double precision, [channels, padded // 2 + 1, 1]."""
        return self.charge(transform(self.column[:, :, None], padded_length(self.column.shape[1])))


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """The weights as a state space model over chunks of L samples; see `state_space.py`.

    Attributes:
        near: Lags inside the chunk, [channels, L, L].
        far: From the states to the samples, [channels, K, L].
        into: From the samples to the states, [L, K].
        decay: Factor of each state from chunk to chunk, [K], float64.
        charge: What is told of everything that is made of the form.
    """

    near: np.ndarray
    far: np.ndarray
    into: np.ndarray
    decay: np.ndarray
    charge: Charge = field(default=free, repr=False)

    @cached_property
    def forward(self) -> kernel.Operands:
        """What the compiled product takes."""
        return self.charge(kernel.forward(self.near, self.far, self._entries[0], self._decays))

    @cached_property
    def backward(self) -> kernel.Operands:
        """What its compiled transpose takes."""
        return self.charge(kernel.backward(self.near, self.far, self._entries[1], self._decays))

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        return kernel.entries(self.into)

    @cached_property
    def _decays(self) -> tuple[np.ndarray, np.ndarray]:
        return kernel.decays(self.decay, self.near.dtype)


def toeplitz(column: np.ndarray) -> np.ndarray:
    """Return the lower triangular matrices [channels, n, n] with first columns [channels, n]."""
    channels, n = column.shape
    backwards = np.concatenate([column[:, ::-1], np.zeros((channels, n - 1), column.dtype)], axis=1)
    # contiguous, or NumPy multiplies it without BLAS
    return np.ascontiguousarray(sliding_window_view(backwards, n, axis=-1)[:, ::-1])


def transform(x: np.ndarray, length: int) -> np.ndarray:
    """Return the transform along axis -2, padded to `length`, in double precision."""
    return rfft(x.astype(np.float64, copy=False), length, axis=-2)


def padded_length(n: int) -> int:
    """Return a length of at least 2n - 1, so that nothing wraps round, that is fast to transform."""
    return next_fast_len(max(2 * n - 1, 1), real=True)
