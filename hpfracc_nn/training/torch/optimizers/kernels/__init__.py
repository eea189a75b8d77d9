"""The kernels of `history_mix` for torch tensors, one file each; importing this package registers them."""

from hpfracc_nn.training.torch.optimizers.kernels import foreach, matmul, numba_blocks

__all__ = ["foreach", "matmul", "numba_blocks"]
