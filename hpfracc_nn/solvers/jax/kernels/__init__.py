"""The kernels of a solve's history for JAX, registered when this is imported.

A kernel's `run(weights, nodes, history)` returns a `Past`, which adds the values up inside of the solve's own loop, so
that XLA compiles it with the steps. It is chosen when a solve is traced. Its transpose is JAX's.
"""

from hpfracc_nn.solvers.jax.kernels import dense, fft, recurrence

__all__ = ["dense", "fft", "recurrence"]
