"""The sum of exponentials meets its tolerance, and a kernel that cannot take a workload says why."""

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional import exponentials as fits
from hpfracc_nn.fractional.definitions import Caputo, Definition
from hpfracc_nn.fractional.exponentials import exponentials, tolerance
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numba import kernel as numba_kernel
from hpfracc_nn.selection import BackendManager, Settings, Workload
from tests.torch_cases import KERNELS, Forced, Refused, alphas_of, every_scheme, manager_for, stencil_of, unusable

BETWEEN = (1e-3, 0.02, 0.25, 0.75, 0.98, 0.999, 1.001, 1.02, 1.25, 1.75, 1.999)


@every_scheme
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("n", [128, 1024, pytest.param(16384, marks=pytest.mark.slow)])
def test_exponentials_meet_their_tolerance_at_every_lag(
    kind: type[Definition], scheme: str, precision: str, n: int
) -> None:
    for alpha in (*alphas_of(kind), *BETWEEN):
        definition = kind(alpha, scheme)
        found = exponentials(definition, n, precision)
        assert found is not None, alpha
        stencil = stencil_of(definition, n, 1.0)
        lags = np.arange(found.first, n)
        decays = np.exp(-np.outer(found.rates, lags - found.first))
        exact, fitted = stencil.column(lags), found.fit(stencil.column(found.lags), NUMPY) @ decays
        # Where the weights vanish, as at a whole alpha, rounding of the first one remains.
        noise = 1e-15 * abs(stencil.column(np.arange(1)))
        assert np.all(abs(fitted - exact) <= tolerance(n, precision) * abs(exact) + noise), alpha


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_weights_that_are_no_exponentials_to_tolerance_have_none(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(fits, "tolerance", lambda n, precision: -1.0)
    assert exponentials(Caputo(0.123), 1024, precision) is None
    # bounds of its own: what is found is kept, for other tests too
    assert exponentials(Caputo(torch.tensor(0.123), bounds=(0.01, 0.99)), 1024, precision) is None
    x = torch.ones(3, 1024, dtype=torch.float64)
    for kernel in KERNELS:
        if kernel.algorithm == "chunked_scan" and unusable(kernel) is None:
            forced = Forced(kernel, "cpu")
            with pytest.raises(Refused, match="the weights are no sum of exponentials to float64 tolerance"):
                forced(x, Caputo(0.124))


def test_a_forced_kernel_that_refuses_is_named_with_its_reason() -> None:
    dense = next(kernel for kernel in KERNELS if kernel.name == "torch/dense")
    with pytest.raises(LookupError, match=r"torch/dense: n=20000 needs 1\.49 GiB of matrices"):
        manager_for(dense).plan(Workload("toeplitz", "torch", n=20000))


def test_chunks_need_exponentials_as_soon_as_there_are_two() -> None:
    for kernel in KERNELS:
        if kernel.algorithm == "chunked_scan" and unusable(kernel) is None:
            assert kernel.refuses(Workload("toeplitz", "torch", n=128)) is None
            assert kernel.refuses(Workload("toeplitz", "torch", n=129, exponentials=20)) is None
            reason = kernel.refuses(Workload("toeplitz", "torch", n=129))
            assert reason == "the weights are no sum of exponentials to float32 tolerance"


def test_numba_refuses_other_devices_and_its_own_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Workload("toeplitz", "torch", device="cuda:0", n=8)
    assert numba_kernel.refuses(work) == "it computes on the CPU and the data lie on cuda:0"
    monkeypatch.setattr(numba_kernel, "find_spec", lambda name: None)
    reason = numba_kernel.refuses(Workload("toeplitz", "torch", n=8))
    assert reason == "Numba is not installed; pip install 'hpfracc-nn[numba]'"


def test_without_numba_another_kernel_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_kernel, "find_spec", lambda name: None)
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    plan = manager.plan(Workload("toeplitz", "torch", rows=64, n=4096, exponentials=30))
    assert plan.backend != "numba"
    with pytest.raises(LookupError, match="Numba is not installed"):
        BackendManager(Settings(force_backend="numba", calibration="shipped", mode="prior")).plan(
            Workload("toeplitz", "torch", n=4096, exponentials=30)
        )
