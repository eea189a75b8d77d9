"""The kernels of a solver's history, registered when this package is imported."""

from hpfracc_nn.solvers.torch.kernels import cuda_recurrence, numba_dense, plain

__all__ = ["cuda_recurrence", "numba_dense", "plain"]
