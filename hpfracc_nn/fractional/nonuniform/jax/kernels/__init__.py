"""The kernels for JAX's arrays, registered on import."""

from hpfracc_nn.fractional.nonuniform.jax.kernels import chunked_scan, dense

__all__ = ["chunked_scan", "dense"]
