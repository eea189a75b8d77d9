"""The kernels for NumPy arrays, registered on import.

Each computes an operator on data [batch, channels, n, width], contiguous, aligned and of the dtype that is computed in:

- `prepare(weights, workload)`: the weights in the kernel's form.
- `run(form, frame, x, y)`: writes the operator on x into y.
- `adjoint(form, frame, g, gx)`: writes its transpose on g into gx.
"""

from hpfracc_nn.fractional.numpy.kernels import dense, fft, numba_recurrence

__all__ = ["dense", "fft", "numba_recurrence"]
