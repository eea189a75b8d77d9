"""The kernels of a solver's history, registered when this is imported."""

from hpfracc_nn.solvers.torch.kernels import dense, fft, recurrence

__all__ = ["dense", "fft", "recurrence"]
