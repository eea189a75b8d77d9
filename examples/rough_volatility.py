"""How rough is the volatility of the S&P 500? One Hurst index with its noise, and one without.

Each day's variance is estimated from its high and low (Parkinson), which is off by independent noise: the logarithm of
the squared range of a Brownian day has a standard deviation of 0.57 (Alizadeh, Brandt & Diebold, J. Finance 57 (2002)
1047). Noise looks like roughness. An index that leaves it out answers another question, as the same estimates of a
simulated volatility show, whose index is known.

Run:  python examples/rough_volatility.py [--quick]
"""

import argparse
import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hpfracc_nn.data import rfsv, sp500_volatility
from hpfracc_nn.training import structure_function, whittle


def range_noise(days, rng, steps=500):
    """The standard deviation of the logarithm of a squared daily range, where prices are Brownian motion."""
    path = np.cumsum(rng.standard_normal((days, steps)), 1) / math.sqrt(steps)
    spread = np.maximum(path.max(1), 0) - np.minimum(path.min(1), 0)
    return np.log(spread**2).std()


def report(name, series):
    plain, noisy = whittle(series), whittle(series, has_noise=True)
    short, long = (structure_function(series, lags=lags).hurst for lags in ((1, 2, 4), (16, 32, 64)))
    print(f"{name}, {series.size} days")
    print(f"  without noise  hurst {plain.hurst:.3f}  [{plain.interval[0]:.3f}, {plain.interval[1]:.3f}]")
    print(f"  with noise     hurst {noisy.hurst:.3f}  [{noisy.interval[0]:.3f}, {noisy.interval[1]:.3f}]", end="")
    print(f"  of deviation {noisy.noise:.2f}")
    print(f"  structure functions: {short:.3f} at lags 1 to 4, {long:.3f} at 16 to 64: a line would have one slope\n")


def draw(path, variances):
    figure, lags = Figure(figsize=(6, 4), layout="constrained"), np.array([1, 2, 4, 8, 16, 32, 64])
    panel = figure.subplots()
    for name, series in variances.items():
        panel.loglog(lags, [np.mean((series[lag:] - series[:-lag]) ** 2) for lag in lags], "o-", label=name)
    panel.set(xlabel="lag in days", ylabel="mean squared increment", title="Log variance: noise flattens short lags")
    panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer days")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    days = 1500 if arguments.quick else 5031
    rng = np.random.default_rng(0)
    print(f"noise of a range, if prices were Brownian within a day: {range_noise(2000, rng):.2f}\n")
    measured = sp500_volatility(days)[1]
    report("S&P 500, logarithm of Parkinson's variance", measured)
    # A logarithm of a variance is twice that of a volatility.
    simulated = 2 * rfsv(days, rng, hurst=0.19, vol_of_vol=0.24)
    report("simulated with hurst 0.19, seen without noise", simulated)
    noisy = simulated + 0.67 * rng.standard_normal(days)
    report("the same, seen with noise of deviation 0.67", noisy)
    series = {"S&P 500": measured, "simulated, hurst 0.19": simulated, "the same with noise": noisy}
    draw(arguments.output / "rough_volatility.png", series)


if __name__ == "__main__":
    main()
