"""How rough is a signal? Log energies of fractional differences, and the Hurst index that they tell.

Fractional Gaussian noises of several Hurst indices go through `RoughnessFeatures` at eight orders. What comes out is
compared with the closed form, an integral over the spectrum; the index follows from the slope between two orders.
At last a linear classifier tells five indices apart from 128 samples each, beside Whittle's likelihood; neither knows
the variance of a signal. For five other indices and a known variance docs/layers.md has 0.875 and 0.821.

Run:  python examples/roughness.py [--quick]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.special import gamma, zeta
from sklearn.linear_model import LogisticRegression

from hpfracc_nn import RoughnessFeatures
from hpfracc_nn.data import fgn
from hpfracc_nn.training import whittle

INDICES = (0.2, 0.35, 0.5, 0.65, 0.8)
ORDERS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)


def density(w, hurst):
    """The spectral density of fractional Gaussian noise of variance 1 on [-pi, pi] (Sinai, 1976)."""
    power, turn = 2 * hurst + 1, w / (2 * np.pi)
    images = (2 * np.pi) ** -power * (zeta(power, turn) + zeta(power, 1 - turn))
    return np.sin(np.pi * hurst) * gamma(power) / np.pi * 2 * np.sin(w / 2) ** 2 * images


def log_energy(alpha, hurst):
    """The logarithm of the variance after the difference of order alpha."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    u = (nodes + 1) / 2
    w = np.pi * u**20  # smooth where the density is not
    return np.log(np.sum(weights * density(w, hurst) * (2 * np.sin(w / 2)) ** (2 * alpha) * 20 * np.pi * u**19))


def signals(hurst, count, n, rng):  # [count, 1, n], of an arbitrary variance
    return 7.0 * torch.as_tensor(np.stack([fgn(n, hurst, rng) for _ in range(count)]))[:, None]


def hurst_of(features):
    """The index at which the closed form has the same slope between orders 0 and 1."""
    grid = np.linspace(0.01, 0.99, 99)
    slopes = [log_energy(1.0, hurst) - log_energy(0.0, hurst) for hurst in grid]
    return np.interp(features[0] - features[-1], -np.array(slopes), grid)  # the slope falls as the index grows


def told_apart(count, rng):
    """Parts of five classes that a linear classifier of the features and that Whittle's estimate get right."""
    x = torch.cat([signals(hurst, 2 * count, 128, rng) for hurst in INDICES])
    classes, trains = np.arange(len(INDICES)).repeat(2 * count), np.arange(len(x)) % 2 == 0
    features = RoughnessFeatures(1, len(ORDERS), alpha=list(ORDERS), bounds=(0, 1))(x).numpy()
    features = features[:, 1:] - features[:, :1]  # in which the variance cancels
    # Not least squares on the classes' indicators: the middle ones of classes in a row are then rarely the largest.
    classifier = LogisticRegression(C=1e4, max_iter=5000).fit(features[trains], classes[trains])
    found = np.array([whittle(np.append(0.0, np.cumsum(noise))).hurst for noise in x[~trains, 0].numpy()])
    nearest = np.abs(found[:, None] - np.array(INDICES)).argmin(1)
    return classifier.score(features[~trains], classes[~trains]), np.mean(nearest == classes[~trains])


def picture(measured, path):
    figure, fine = Figure(figsize=(6, 4), layout="constrained"), np.linspace(0, 1, 41)
    panel = figure.add_subplot(xlabel="order of the difference", ylabel="log energy")
    for number, hurst in enumerate(INDICES):
        panel.plot(fine, [log_energy(alpha, hurst) for alpha in fine], color=f"C{number}", label=f"H = {hurst}")
        panel.plot(ORDERS, measured[hurst] - 2 * np.log(7), "o", color=f"C{number}")
    panel.legend(title="lines: closed form")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter signals")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    count, n = (10, 4096) if arguments.quick else (40, 16384)
    rng = np.random.default_rng(0)
    layer = RoughnessFeatures(1, len(ORDERS), alpha=list(ORDERS), bounds=(0, 1), skip=n // 4)
    measured = {hurst: layer(signals(hurst, count, n, rng)).mean(0).numpy() for hurst in INDICES}
    for hurst in INDICES:
        found = hurst_of(measured[hurst])
        print(f"Hurst index {hurst}: {found:.4f} from the slope of the log energies of {count} x {n} samples")
        assert abs(found - hurst) < (0.02 if arguments.quick else 0.01)
    linear, likely = told_apart(20 if arguments.quick else 100, rng)
    print(f"five indices from 128 samples: {linear:.2f} right by a linear map, {likely:.2f} by Whittle's likelihood")
    assert linear > 0.7  # 0.2 by chance
    picture(measured, arguments.output / "roughness.png")


if __name__ == "__main__":
    main()
