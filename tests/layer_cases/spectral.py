"""The spectral layer, by a discrete Fourier transform written out as a matrix."""

import math
from typing import Any

import numpy as np
import torch

from hpfracc_nn.layers.torch import SpectralFractional
from tests.layer_cases import LayerCase


def waves(n: int) -> np.ndarray:
    k = np.arange(n)
    return np.exp(-2j * np.pi * np.outer(k, k) / n)


def frequencies(n: int, dt: float) -> np.ndarray:
    k = np.arange(n)
    return 2 * np.pi * np.where(k <= n // 2, k, k - n) / (n * dt)


def reference(layer: Any, x: np.ndarray) -> np.ndarray:
    axes, steps = layer.dim, layer.dt * (len(layer.dim) // len(layer.dt))
    alphas = np.broadcast_to(np.asarray(layer.alpha), (x.shape[1],))
    squared = sum(
        frequencies(x.shape[axis], dt).reshape(-1, *(1,) * (-1 - axis)) ** 2
        for axis, dt in zip(axes, steps, strict=True)
    )
    y = np.zeros(x.shape)
    for c, alpha in enumerate(alphas):
        spectrum = x[:, c].astype(complex)
        for axis in axes:
            spectrum = np.moveaxis(np.moveaxis(spectrum, axis, -1) @ waves(x.shape[axis]), -1, axis)
        spectrum = spectrum * np.where(squared == 0, float(alpha == 0), squared ** (alpha / 2))
        for axis in axes:
            n = x.shape[axis]
            spectrum = np.moveaxis(np.moveaxis(spectrum, axis, -1) @ waves(n).conj() / n, -1, axis)
        y[:, c] = spectrum.real
    return y


CASES = [
    LayerCase(
        SpectralFractional,
        (),
        lambda draw, batch: (draw(batch, 3, 20),),
        reference,
        chooses=False,
        options={"dt": 0.3, "dim": -1},
        alphas=(0.4, 1.0, 1.7),
        limit=(0.0, lambda layer: lambda x: x),
        refusals=(
            ("definition", lambda: SpectralFractional(0.5, "weyl"), ValueError, "periodic_weyl"),
            ("axes", lambda: SpectralFractional(0.5, "periodic_riesz", dim=(-2, -1)), ValueError, "one to 1 axes"),
            ("four axes", lambda: SpectralFractional(0.5, dim=(-4, -3, -2, -1)), ValueError, "one to 3 axes"),
            ("spacings", lambda: SpectralFractional(0.5, dim=(-2, -1), dt=(1, 1, 1)), ValueError, "one spacing"),
            ("alpha", lambda: SpectralFractional(2.5, learn_alpha=True), ValueError, "alpha=2.5"),
            ("infinite", lambda: SpectralFractional(math.inf), ValueError, "finite alpha"),
            (
                "other channels",
                lambda: SpectralFractional(0.5, channels=3, dim=-1)(torch.zeros(2, 4, 8)),
                ValueError,
                "needs 3 channels",
            ),
            (
                "no channels",
                lambda: SpectralFractional(0.5, channels=3)(torch.zeros(8)),
                ValueError,
                "needs 3 channels",
            ),
            ("channels", lambda: SpectralFractional([0.5, 1.5], channels=3), ValueError, "one order per channel"),
        ),
    ),
    LayerCase(
        SpectralFractional,
        (),
        lambda draw, batch: (draw(batch, 2, 6, 5),),
        reference,
        chooses=False,
        options={"dt": (0.3, 0.5), "dim": (-2, -1), "channels": 2},
        name="2-D, channels",
        alphas=([0.4, 1.3], 1.0, [1.7, 0.9]),
        limit=(0.0, lambda layer: lambda x: x),
    ),
    LayerCase(
        SpectralFractional,
        (),
        lambda draw, batch: (draw(batch, 2, 4, 3, 5),),
        reference,
        chooses=False,
        options={"dt": 0.5, "dim": (-3, -2, -1)},
        name="3-D",
        alphas=(0.4, 1.0, 1.7),
    ),
]
