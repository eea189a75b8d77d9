"""The kernels for torch tensors; importing this package registers them."""

from hpfracc_nn.fractional.torch.kernels import (
    chunked_scan,
    cuda_host,
    cuda_product,
    numba_recurrence,
    toeplitz,
    triton_product,
    xla,
)

__all__ = ["chunked_scan", "cuda_host", "cuda_product", "numba_recurrence", "toeplitz", "triton_product", "xla"]
