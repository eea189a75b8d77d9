"""The kernels for NumPy arrays, registered on import.

Each computes y[b, c, t, w] = sum over k of column[c, k] x[b, c, t - k, w]:

- `run(column, x)`: column [channels, n], x [batch, channels, n, width]; new, contiguous, of x's shape.
- `adjoint(column, g)`: the transpose in x, of g's shape.
- `gram(x, g)`: the gradient of <run(column, x), g> in the column, [channels, n].
- `prepare(column, dtype)`: the column as the other three take it.
"""

from hpfracc_nn.fractional.numpy.kernels import dense, fft

__all__ = ["dense", "fft"]
