"""The kernels of `history_mix` for torch tensors, one file each; importing this package registers them."""

from hpfracc_nn.training.torch.optimizers.kernels import cuda_mix, numba_mix, torch_mix, triton_mix

__all__ = ["cuda_mix", "numba_mix", "torch_mix", "triton_mix"]
