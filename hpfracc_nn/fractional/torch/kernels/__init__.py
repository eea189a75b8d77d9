"""The kernels for torch tensors, one file each; importing this package registers them."""

from hpfracc_nn.fractional.torch.kernels import (
    chunked_scan,
    cuda_chunked_scan,
    cuda_dense,
    cuda_host,
    cuda_recurrence,
    dense,
    fft,
    numba_recurrence,
    xla_chunked_scan,
    xla_fft,
)

__all__ = [
    "chunked_scan",
    "cuda_chunked_scan",
    "cuda_dense",
    "cuda_host",
    "cuda_recurrence",
    "dense",
    "fft",
    "numba_recurrence",
    "xla_chunked_scan",
    "xla_fft",
]
