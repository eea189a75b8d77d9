"""Make a price stationary and keep its memory: the smallest order of differencing that passes a unit root test.

A whole difference of a logarithmic price is its returns, which have forgotten the price. An order between 0 and 1 takes
away just as much as the test asks for (Lopez de Prado, Advances in Financial Machine Learning (2018), chapter 5).

Run:  python examples/fractional_differencing.py [--quick]
"""

import argparse
from importlib import import_module
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from statsmodels.tsa.stattools import adfuller

from hpfracc_nn import fdiff
from hpfracc_nn.preprocessing import StationaryDifferencer

WINDOW, LEVEL = 500, 0.05


def log_price(days):
    """The last `days` logarithms of the S&P 500's closing price, from those that `arch` ships."""
    return np.log(import_module("arch.data.sp500").load()["Adj Close"].to_numpy()[-days:])


def describe(price, alpha):
    """Return the difference of order alpha, its p-value in the test, and its correlation with the price."""
    found = fdiff(price, alpha, window=WINDOW, mode="valid")
    correlation = np.corrcoef(found, price[WINDOW - 1 :])[0, 1]
    p_value = adfuller(found, result_object=True).pvalue
    print(f"order {alpha:.3f}: p-value {p_value:.4f}, correlation with the price {correlation:+.3f}")
    return found, p_value, correlation


def draw(path, price, kept, returns, alpha):
    figure = Figure(figsize=(9, 6), layout="constrained")
    parts = (
        ("logarithm of the price: a unit root", price[WINDOW - 1 :]),
        (f"order {alpha:.2f}: stationary, and still the price", kept),
        ("order 1: the returns, which have forgotten it", returns),
    )
    for panel, (title, values) in zip(figure.subplots(3, 1, sharex=True), parts, strict=True):
        panel.plot(values, linewidth=0.7)
        panel.set_title(title)
    panel.set_xlabel("days")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a coarser search for the order")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    price = log_price(5031)
    search = StationaryDifferencer(LEVEL, window=WINDOW, mode="valid", precision=0.05 if arguments.quick else 0.005)
    alpha = float(search.fit(price[:, None]).alpha_[0])
    print(f"smallest order found that passes at {LEVEL:.0%}: {alpha:.3f}, p-value {search.pvalues_[0]:.4f}\n")
    _, as_it_is, _ = describe(price, 0.0)
    kept, passes, memory = describe(price, alpha)
    returns, _, forgotten = describe(price, 1.0)
    assert as_it_is > LEVEL >= passes, "the price has a unit root, and its difference has none"
    assert alpha < 1
    assert memory > 0.5 > abs(forgotten), "the difference remembers the price, and the returns do not"
    undone = fdiff(fdiff(price, alpha), -alpha)
    assert np.abs(undone - price).max() < 1e-9, "the opposite order undoes a difference"
    draw(arguments.output / "fractional_differencing.png", price, kept, returns, alpha)


if __name__ == "__main__":
    main()
