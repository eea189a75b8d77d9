"""Forecast the volatility of the S&P 500 with three parameters: long memory beside autoregressions and HAR.

The logarithm of Parkinson's daily range, 2000 days. ARFIMA(1, d, 0) is fitted to the first 1400 and forecasts each of
the others one day ahead, and once sixty days at a stretch. First the same fit on series whose order is known.

Run:  python examples/long_memory.py [--quick]
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hpfracc_nn import ARFIMA
from hpfracc_nn.data import arfima, sp500_volatility
from hpfracc_nn.training.baselines import autoregression, har, random_walk

START, AHEAD = 1400, 60  # days
TRUE = 0.4


def recover(seeds):
    """Print the orders of simulated series, and return by how many standard errors each is off."""
    off = []
    for seed in seeds:
        found = ARFIMA(ar=0).fit(arfima(2000, TRUE, np.random.default_rng(seed))).estimates
        alpha, error = found.estimates["alpha"], found.standard_errors["alpha"]
        print(f"simulated with d = {TRUE}: found {alpha:.3f}, standard error {error:.3f}")
        off.append((alpha - TRUE) / error)
    return np.array(off)


def compare(series, model):
    """Print the errors of the forecasts from START on, in units of the variance before it, and return them."""
    variance = series[:START].var()
    known = {
        "random walk": random_walk(series, START),
        "AR(1)": autoregression(series, START, 1),
        "AR(5), 6 parameters": autoregression(series, START, 5),
        "AR(22), 23 parameters": autoregression(series, START, 22),
        "HAR, 4 parameters": har(series, START),
    }
    errors = {name: np.mean((values - series[START:]) ** 2) / variance for name, values in known.items()}
    errors["ARFIMA(1, d, 0), 3 parameters"] = model.forecast_mse(series, START) / variance
    for name, error in errors.items():
        print(f"{name:30} {error:.4f}")
    return errors


def draw(path, dates, series, model, errors):
    """Draw a forecast of the days after START beside what they brought, and the errors of all one-day forecasts."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    panel, bars = figure.subplots(1, 2, width_ratios=(3, 1))
    known, days = series[:START], np.arange(1, AHEAD + 1)
    low, high = model.forecast_interval(AHEAD, 0.8, known)
    one_day = ARFIMA(ar=1, alpha=0.0, learn_alpha=False).fit(known)
    panel.plot(
        np.arange(-AHEAD, 1), known[-AHEAD - 1 :], color="0.6", linewidth=0.8, label="log range of the day, known"
    )
    panel.plot(days, series[START : START + AHEAD], color="0.2", linewidth=0.8, label="what happened")
    panel.plot(days, model.forecast(AHEAD, known), linewidth=2, label="ARFIMA(1, d, 0)")
    panel.fill_between(days, low, high, alpha=0.2, label="80 % of the days")
    panel.plot(days, one_day.forecast(AHEAD, known), "--", linewidth=2, label="AR(1): forgets within a week")
    panel.set(xlabel=f"days after {dates[START - 1]}", title=f"S&P 500, d = {float(model.alpha.detach()):.2f}")
    panel.set_ylim(top=1.25 * series[START - AHEAD : START + AHEAD].max() - 0.25 * series[START - AHEAD :].min())
    panel.legend(loc="upper left", ncols=2, fontsize=8)
    names = [name.rpartition(", ")[0] or name for name in errors]
    bars.barh(names, errors.values(), color=["0.7"] * (len(names) - 1) + ["C0"])
    bars.bar_label(bars.containers[0], fmt="%.3f", fontsize=8)
    bars.set(title=f"{len(series) - START} one-day forecasts", xlabel="squared error / variance", xlim=(0, 1.4))
    bars.tick_params(labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer simulated series")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    off = recover(range(2 if arguments.quick else 10))
    assert np.abs(off).max() < 3.5, "an order is further off than its standard error explains"
    dates, series = sp500_volatility(2000)
    model = ARFIMA(ar=1).fit(series[:START])
    print(f"\nS&P 500, fitted to the first {START} days\n{model.estimates.summary()}\n")
    errors = compare(series, model)
    assert errors["ARFIMA(1, d, 0), 3 parameters"] == min(errors.values()) < 0.685
    low, high = model.estimates.intervals_at(0.95)["alpha"]
    assert 0.3 < low < high < 0.6, "the volatility has a long memory, and nearly none too long to be stationary"
    draw(arguments.output / "long_memory.png", dates, series, model, errors)


if __name__ == "__main__":
    main()
