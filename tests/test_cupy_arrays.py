"""CuPy's arrays are computed by torch and come back as CuPy's; without a device they are refused with the reason.

An array of the host stands for one of a device: it speaks DLPack as CuPy's do, with strides and a stream to wait for.
"""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hpfracc_nn import Caputo, PeriodicRiesz, derivative, fdiff, integral
from hpfracc_nn.fractional.torch import cupy_arrays


class ndarray:
    """As much of CuPy's as is asked for; `waited` are the streams that its data were made ready for."""

    __module__ = "cupy"

    def __init__(self, values: NDArray[Any]) -> None:
        self.values, self.device, self.strides, self.shape = values, SimpleNamespace(id=0), values.strides, values.shape

    def __dlpack__(self, **given: Any) -> Any:
        assert all(stride >= 0 for stride in self.strides), "torch takes no others"
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()

    def __array__(self, *given: Any, **named: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """CuPy with a device, as far as a host can stand for both; the streams that results are kept for."""
    kept: list[int] = []
    module = SimpleNamespace(
        ndarray=ndarray,
        from_dlpack=lambda y: ndarray(np.from_dlpack(y)),
        ascontiguousarray=lambda x: ndarray(np.ascontiguousarray(x.values)),
        cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7)),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)  # type: ignore[arg-type]
    monkeypatch.setattr(cupy_arrays, "missing", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda ptr: ptr)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda y, stream: kept.append(stream))
    return kept


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_of_cupy_comes_back_as_one(cupy: list[int], dtype: type) -> None:
    x: NDArray[Any] = np.linspace(0, 1, 60, dtype=dtype).reshape(2, 30) ** 2
    for made in (
        lambda x: derivative(x, Caputo(0.5), dt=0.1),
        lambda x: derivative(x, Caputo((0.3, 0.6)), dt=0.1),
        lambda x: integral(x, 0.4, dt=0.1, dim=0),
        lambda x: derivative(x, PeriodicRiesz(0.5)),
    ):
        found, wanted = made(ndarray(x)), made(torch.as_tensor(x))
        assert type(found) is ndarray
        np.testing.assert_array_equal(found.values, wanted.numpy())
    assert cupy == [7] * 4


def test_an_array_that_runs_backwards_is_copied(cupy: list[int]) -> None:
    x = np.linspace(0, 1, 30)
    found = derivative(ndarray(x[::-1]), Caputo(0.5))
    np.testing.assert_array_equal(found.values, derivative(torch.as_tensor(x[::-1].copy()), Caputo(0.5)).numpy())


def test_nothing_is_recorded_for_a_gradient(cupy: list[int]) -> None:
    alpha = torch.tensor(0.5, requires_grad=True)
    assert type(derivative(ndarray(np.ones(5)), Caputo(alpha))) is ndarray


def test_without_a_device_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ndarray(np.ones(5))
    for name, found, said in (
        ("cuda", None, "this torch was built without CUDA; install one that was built with it"),
        ("cuda", "13.0", "it finds no CUDA device that it can use"),
    ):
        monkeypatch.setattr(torch.version, name, found)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(RuntimeError, match=f"^derivative.*computed by torch, and {said}.*asnumpy"):
            derivative(x, Caputo(0.5))


def test_without_torch_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hpfracc_nn.fractional.torch.cupy_arrays", None)  # type: ignore[arg-type]
    monkeypatch.delattr("hpfracc_nn.fractional.torch.cupy_arrays")
    with pytest.raises(RuntimeError, match=r"computed by torch, which is not installed; pip install"):
        derivative(ndarray(np.ones(5)), Caputo(0.5))


def test_a_function_that_takes_none_says_the_way() -> None:
    with pytest.raises(
        TypeError, match=r"fdiff\(a of type cupy.ndarray\): takes no CuPy array; pass torch.from_dlpack"
    ):
        fdiff(ndarray(np.ones(5)), 0.5)
