"""A river that remembers, and the rain: ARFIMA(1, d, 1) with a regressor, gaps, and intervals of its forecasts.

The flow of a day is a level, what rain adds to it, and a noise of long memory with a lag and an error before. The last
two months are held out, and a month before them was not measured. The same model without a long memory (d = 0, which is
what SARIMAX fits) is given the same samples and the same rain.

Run:  python examples/rain_and_flow.py [--quick]
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import signal

from hpfracc_nn.data import arfima
from hpfracc_nn.series import fit_arfima

TRUE = {"const": 2.0, "x1": 0.7, "alpha": 0.3, "ar.L1": -0.6, "ma.L1": -0.3}
DAYS, AHEAD, GAP = 1000, 60, slice(900, 930)
LEVEL = 0.8


def simulated(seed):
    """Return flow and rain of DAYS + AHEAD days."""
    rng = np.random.default_rng(seed)
    rain = rng.gamma(0.5, 2.0, DAYS + AHEAD)
    noise = arfima(DAYS + AHEAD + 500, TRUE["alpha"], rng)
    noise = signal.lfilter([1, TRUE["ma.L1"]], [1, -TRUE["ar.L1"]], noise)[500:]  # without the start of the filter
    return TRUE["const"] + TRUE["x1"] * rain + noise, rain


def fitted(flow, rain, alpha=None):
    """Fit all days but the last AHEAD, of which those of GAP are missing."""
    known = flow[:DAYS].copy()
    known[GAP] = np.nan
    return fit_arfima(known, rain[:DAYS], ar=1, ma=1, alpha=alpha, likelihood="restricted")


def draw(path, flow, rain, found):
    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    shown = np.arange(DAYS - 120, DAYS + AHEAD)
    known = flow.copy()
    known[GAP] = np.nan
    above.plot(shown, flow[shown], ":", color="0.6", label="not seen by the fit")
    above.plot(shown[:120], known[shown[:120]], color="0.3", label="flow")
    gap, ahead = found.interpolate(), found.get_forecast(AHEAD, exog=rain[DAYS:])
    parts = ((np.arange(GAP.start, GAP.stop), gap, "the gap"), (np.arange(DAYS, DAYS + AHEAD), ahead, "forecast"))
    for color, (days, part, label) in zip(("C1", "C0"), parts, strict=True):
        above.plot(days, part.predicted_mean, color=color, label=label)
        above.fill_between(days, *part.conf_int(alpha=1 - LEVEL).T, color=color, alpha=0.2)
    above.set(ylabel="flow", title=f"d = {found.alpha:.2f}, bands of {LEVEL:.0%}")
    above.set_ylim(top=12.5)  # above it the names
    above.legend(loc="upper left", ncols=4)
    below.bar(shown, rain[shown], color="C0", width=1.0)
    below.set(ylabel="rain", xlabel="day")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer simulated rivers")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    seeds = range(2 if arguments.quick else 40)
    first, off, inside, squares = None, [], [], []
    for seed in seeds:
        flow, rain = simulated(seed)
        found, without = fitted(flow, rain), fitted(flow, rain, alpha=0.0)
        first = first or (flow, rain, found)
        off.append((found.params[: len(TRUE)] - list(TRUE.values())) / found.bse[: len(TRUE)])
        held, ahead = flow[DAYS:], found.get_forecast(AHEAD, exog=rain[DAYS:])
        low, high = ahead.conf_int(alpha=1 - LEVEL).T
        inside.append(np.mean((low < held) & (held < high)))
        short = without.forecast(AHEAD, exog=rain[DAYS:])
        squares.append([np.mean((each - held) ** 2) for each in (ahead.predicted_mean, short)])
    print(first[2].summary())
    print(f"\n{len(seeds)} rivers, {AHEAD} days ahead")
    print(f"inside the bands of {LEVEL:.0%}: {np.mean(inside):.0%}")
    with_memory, without_memory = np.mean(squares, axis=0)
    print(f"mean squared error: {with_memory:.3f}, without a long memory {without_memory:.3f}")
    print(f"parameters within 2 standard errors: {np.mean(np.abs(off) < 2):.0%}")
    assert 0.7 < np.mean(inside) < 0.9
    draw(arguments.output / "rain_and_flow.png", *first)


if __name__ == "__main__":
    main()
