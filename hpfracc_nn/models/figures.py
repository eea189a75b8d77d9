"""Plots of fits: data, models with their bands, and residuals.

Each function returns a matplotlib figure of its own, without pyplot; `figure.savefig(path)` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpfracc_nn import lazy
from hpfracc_nn.models.experiments import KINDS, Experiment, Kind

ModelFit = Any  # `estimation.ModelFit` and its `Prediction`, which draw themselves here
Prediction = Any

_WIDTH, _HEIGHT = 5.2, 5.6  # of one experiment's plots, in inches
_POINTS = 200  # on a curve
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_MARKERS = ("o", "s")


def draw_fit(found: ModelFit) -> Any:
    """Return a figure of one fit, with the confidence band of its curve.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    return draw_fits([found])


def draw_fits(fits: Sequence[ModelFit]) -> Any:
    """Return a figure of fits to the same experiments; a single fit has the confidence band of its curve.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    experiments = fits[0].experiments
    size = _WIDTH * len(experiments), _HEIGHT
    figure = lazy.required("matplotlib.figure", "plot(): needs").Figure(figsize=size, layout="constrained")
    axes = figure.subplots(2, len(experiments), squeeze=False, height_ratios=[3, 1])
    for place, experiment in enumerate(experiments):
        kind = KINDS[experiment.kind]
        draw = _draw_plane if kind.is_complex else _draw_curves
        draw(axes[0, place], experiment, kind, fits)
        _draw_residuals(axes[1, place], experiment, kind, fits, place)
    return figure


def _draw_curves(axes: Any, experiment: Experiment, kind: Kind, fits: Sequence[ModelFit]) -> None:
    for part, (name, marker) in enumerate(zip(kind.parts, _MARKERS, strict=False)):
        error = None if experiment.deviation is None else experiment.deviation[part]
        filled = "none" if part == 0 else "0.3"
        axes.errorbar(
            experiment.x,
            experiment.observed[part],
            error,
            fmt=marker,
            color="0.3",
            ms=4,
            mfc=filled,
            label=f"{name}, data",
        )
    x = np.geomspace(experiment.x[0], experiment.x[-1], _POINTS)
    for each, colour in zip(fits, _cycled(len(fits)), strict=True):
        predicted = each.predict(experiment.kind, x)
        for part, (value, low, high) in enumerate(_parts(predicted)):
            axes.plot(x, value, color=colour, lw=1.5, label=each.fitted.label if part == 0 else None)
            if len(fits) == 1:
                axes.fill_between(x, low, high, color=colour, alpha=0.25, lw=0)
    axes.set_xscale("log")
    if (experiment.observed > 0).all():
        axes.set_yscale("log")
    axes.set(title=experiment.name, ylabel=", ".join(kind.parts))
    axes.legend(fontsize="small")


def _draw_plane(axes: Any, experiment: Experiment, kind: Kind, fits: Sequence[ModelFit]) -> None:
    axes.plot(experiment.observed[0], -experiment.observed[1], "o", color="0.3", ms=4, mfc="none", label="data")
    x = np.geomspace(experiment.x[0], experiment.x[-1], _POINTS)
    for each, colour in zip(fits, _cycled(len(fits)), strict=True):
        value = each.predict(experiment.kind, x).value
        axes.plot(value.real, -value.imag, color=colour, lw=1.5, label=each.fitted.label)
    axes.set(title=experiment.name, xlabel=kind.parts[0], ylabel=f"-{kind.parts[1]}")
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(fontsize="small")


def _draw_residuals(axes: Any, experiment: Experiment, kind: Kind, fits: Sequence[ModelFit], place: int) -> None:
    for each, colour in zip(fits, _cycled(len(fits)), strict=True):
        for part, marker in zip(each.residuals[place], _MARKERS, strict=False):
            axes.plot(experiment.x, part, marker, color=colour, ms=3, mfc="none")
    axes.axhline(0, color="0.3", lw=0.8)
    axes.set_xscale("log")
    scale = "residual / noise" if experiment.is_stated else "relative residual"
    axes.set(xlabel=kind.x, ylabel=scale)


def _parts(predicted: Prediction) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    every = predicted.value, predicted.low, predicted.high
    if not np.iscomplexobj(predicted.value):
        return [every]
    real, imaginary = ([part(each) for each in every] for part in (np.real, np.imag))
    return [(real[0], real[1], real[2]), (imaginary[0], imaginary[1], imaginary[2])]


def _cycled(count: int) -> list[str]:
    return [_COLOURS[place % len(_COLOURS)] for place in range(count)]
