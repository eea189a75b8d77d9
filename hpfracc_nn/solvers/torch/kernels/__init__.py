"""The kernels of a solver's history, registered when this is imported."""

from hpfracc_nn.solvers.torch.kernels import cuda_recurrence, dense, fft, numba_dense, recurrence

__all__ = ["cuda_recurrence", "dense", "fft", "numba_dense", "recurrence"]
