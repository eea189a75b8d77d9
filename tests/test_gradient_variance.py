"""The monitor of gradients against NumPy, and on a stochastic model."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.training import GradientVariance


def test_variance_and_signal_are_those_of_the_gradients():
    rng = np.random.default_rng(0)
    gradients = rng.normal([1.0, -2.0, 0.5], [0.1, 1.0, 3.0], (50, 3))
    parameter = torch.nn.Parameter(torch.zeros(3))
    monitor = GradientVariance([parameter])
    for g in gradients:
        parameter.grad = torch.from_numpy(g).float()
        monitor.update()
    variance = gradients.var(0, ddof=1).sum()
    assert monitor.variance() == pytest.approx(variance, rel=1e-5)
    assert monitor.variance("0") == pytest.approx(variance, rel=1e-5)
    signal = (gradients.mean(0) ** 2).sum() - variance / 50
    assert monitor.signal() == pytest.approx(signal, rel=1e-5)
    assert monitor.noise_scale == pytest.approx(variance / signal, rel=1e-5)
    monitor.reset()
    assert monitor.count == 0


def test_gradients_that_stay_have_no_variance():
    layer = torch.nn.Linear(2, 1)
    monitor = GradientVariance(layer)
    for _ in range(3):
        layer.zero_grad()
        layer(torch.ones(4, 2)).sum().backward()
        monitor.update()
    assert monitor.variance() == 0
    assert monitor.noise_scale == 0
    assert monitor.signal("bias") == 16


def test_a_parameter_without_a_gradient_counts_as_zero():
    layer = torch.nn.Linear(2, 1)
    monitor = GradientVariance(layer)
    monitor.update()
    assert monitor.signal() == 0
    assert monitor.noise_scale == float("inf")


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="needs parameters that require a gradient"):
        GradientVariance(torch.nn.Tanh())
