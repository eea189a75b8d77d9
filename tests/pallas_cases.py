"""The Pallas kernel, interpreted on a CPU in the place of a GPU, as Pallas offers it: `pallas_call(interpret=True)`."""

from __future__ import annotations

import pytest

from hpfracc_nn.fractional.jax import pallas_scan
from hpfracc_nn.fractional.jax.kernels import PALLAS_LENGTH
from hpfracc_nn.selection import kernels

(KERNEL,) = (kernel for kernel in kernels("toeplitz", "jax") if kernel.backend == "pallas")


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes data of the host."""
    monkeypatch.setattr(KERNEL, "refuses", lambda workload: None)
    monkeypatch.setattr(KERNEL, "prepare", lambda weights, workload: pallas_scan.prepare(weights, PALLAS_LENGTH, True))
