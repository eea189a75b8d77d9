"""The Pallas kernel, interpreted in the place of a GPU: as `pallas_call(interpret=True)` offers it."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("jax")

from hpfracc_nn.fractional.jax import pallas_scan  # noqa: E402
from hpfracc_nn.fractional.jax.kernels import kernels  # noqa: E402

(KERNEL,) = (kernel for kernel in kernels("toeplitz", "jax") if kernel.backend == "pallas")
LENGTH = 16


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes data of the host."""
    monkeypatch.setattr(KERNEL, "refuses", lambda workload: None)
    monkeypatch.setattr(
        KERNEL, "prepare", lambda weights, workload: pallas_scan.prepare(weights, LENGTH, interpret=True)
    )
