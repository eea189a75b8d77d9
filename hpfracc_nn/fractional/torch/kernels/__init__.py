"""The kernels for torch tensors, one file each; importing this package registers them."""

from hpfracc_nn.fractional.torch.kernels import chunked_scan, dense, fft, numba_recurrence

__all__ = ["chunked_scan", "dense", "fft", "numba_recurrence"]
