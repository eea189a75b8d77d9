"""Fractional features in a scikit-learn pipeline, checked on later and later parts of a series.

Tomorrow's logarithmic range of the S&P 500 from today's features. A fractional difference weighs all of the last 250
days; each test fold goes on where its training rows end, because the transformer remembers them. Beside it: today
alone, and the means of a day, a week and a month (HAR, Corsi 2009).

Run:  python examples/pipeline_features.py [--quick]
"""

import argparse
from pathlib import Path

import numpy as np
import pandas
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler

from hpfracc_nn.data import sp500_volatility
from hpfracc_nn.preprocessing import FractionalDifferencer

ORDER, WINDOW = 0.4, 250  # of the difference: the memory that volatilities usually have


def features(days):
    """Return the tables of features, a row for each day, and what the next day brought."""
    dates, values = sp500_volatility(days + 1)
    today = pandas.DataFrame({"log range": values}, index=pandas.DatetimeIndex(dates))
    means = {f"{length} days": today["log range"].rolling(length, min_periods=1).mean() for length in (1, 5, 22)}
    return today[:-1], pandas.DataFrame(means)[:-1], values[1:]


def fractional_model():
    """Return a pipeline: about its mean, so that a series begins where it usually is, today and its difference."""
    taken = make_union(FractionalDifferencer(0.0), FractionalDifferencer(ORDER, window=WINDOW))
    model = make_pipeline(StandardScaler(with_std=False), taken, LinearRegression())
    return model.set_output(transform="pandas")  # the index tells each step which rows follow


def errors_of(model, table, target, folds):
    """Return the squared errors in each fold's test rows, in units of the variance of its training rows."""
    found = []
    for train, test in folds:
        forecast = model.fit(table.iloc[train], target[train]).predict(table.iloc[test])
        found.append((forecast - target[test]) ** 2 / target[train].var())
    return found


def draw(path, dates, folds, errors):
    figure = Figure(figsize=(9, 4), layout="constrained")
    panel = figure.subplots()
    width = 0.8 / len(errors)
    for number, (name, parts) in enumerate(errors.items()):
        panel.bar(np.arange(len(folds)) + width * number, [part.mean() for part in parts], width, label=name)
    names = [f"{dates[test[0]]:%b %Y} to\n{dates[test[-1]]:%b %Y}" for _, test in folds]
    panel.set_xticks(np.arange(len(folds)) + 0.4 - width / 2, names)
    panel.set(ylabel="squared error / variance before", title="Tomorrow's log range of the S&P 500, by test fold")
    panel.legend(ncols=len(errors))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer days")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    today, means, target = features(2000 if arguments.quick else 5000)
    folds = list(TimeSeriesSplit(5).split(today))
    errors = {
        "today": errors_of(LinearRegression(), today, target, folds),
        "HAR": errors_of(LinearRegression(), means, target, folds),
        "fractional": errors_of(fractional_model(), today, target, folds),
    }
    for name, parts in errors.items():
        shown = "  ".join(f"{part.mean():.3f}" for part in parts)
        print(f"{name:12}{shown}  mean {np.mean(np.concatenate(parts)):.3f}")
    train, test = folds[0]
    taken = FractionalDifferencer(ORDER, window=WINDOW)
    whole = taken.fit_transform(today).iloc[test]
    off = np.abs(taken.fit(today.iloc[train]).transform(today.iloc[test]) - whole).to_numpy().max()
    print(f"features of a test fold differ from those of the whole series by {off:.0e}")
    assert off < 1e-12
    assert np.mean(np.concatenate(errors["fractional"])) < np.mean(np.concatenate(errors["today"]))
    draw(arguments.output / "pipeline_features.png", today.index, folds, errors)


if __name__ == "__main__":
    main()
