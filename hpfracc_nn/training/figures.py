"""The figure of a forecast: the held-out span, and the memory weights of the order."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def draw_forecast(
    path: Path,
    days: Sequence[Any] | np.ndarray,
    truth: np.ndarray,
    forecasts: np.ndarray,
    weights: np.ndarray,
    *,
    alpha: float,
    title: str,
) -> None:
    """Write the figure to `path`, in the format that its suffix names.

    Args:
        path: Where to; its folder must be there.
        days: Dates or numbers of the held-out days, shape [days].
        truth: What came, shape [days].
        forecasts: What was forecast, shape [days].
        weights: Memory weights by lag, shape [n]; drawn from lag 1 on by size, doubly logarithmic.
        alpha: The order they belong to.
        title: Of the upper half.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    figure = _figure_class()(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    above.plot(days, truth, color="0.6", linewidth=0.8, label="observed")
    above.plot(days, forecasts, color="C0", linewidth=1.2, label="forecast one step ahead")
    above.set_title(title)
    above.legend()
    lags = np.arange(1, len(weights))
    below.loglog(lags, np.abs(weights[1:]), ".", markersize=3, color="C0")
    below.set_title(f"Memory: weights of (1 - z)^{alpha:.3f}")
    below.set_xlabel("lag")
    below.set_ylabel("absolute weight")
    figure.savefig(path, dpi=150)


def _figure_class() -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure  # no pyplot: no state, no window
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ModuleNotFoundError(
            "draw_forecast(): needs the package 'matplotlib'; pip install 'hpfracc-nn[plot]'.",
            name=error.name,
        ) from None
