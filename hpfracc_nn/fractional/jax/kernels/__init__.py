"""The kernels for JAX's arrays, one file each; importing this package registers them.

A kernel's `run(form, d)` is a pure function of arrays, linear in the data, that JAX differentiates and XLA compiles
with what stands around it. It is chosen when a call is traced. Nothing is timed unasked: see `planning.py`.
"""

from hpfracc_nn.fractional.jax.kernels import chunked_scan, dense, fft

__all__ = ["chunked_scan", "dense", "fft"]
