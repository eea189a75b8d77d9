"""The kernels for NumPy arrays, registered on import."""

from hpfracc_nn.fractional.nonuniform.numpy.kernels import chunked_scan, dense

__all__ = ["chunked_scan", "dense"]
