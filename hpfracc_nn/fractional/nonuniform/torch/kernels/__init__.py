"""The kernels for torch tensors, registered on import."""

from hpfracc_nn.fractional.nonuniform.torch.kernels import chunked_scan, dense

__all__ = ["chunked_scan", "dense"]
