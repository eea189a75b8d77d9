"""The discretisations: what each computes, in `interpolation` and `differences`, and how fast it converges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpfracc_nn.fractional.schemes import differences, interpolation


@dataclass(frozen=True)
class Scheme:
    """The formulas of one discretisation: its Toeplitz weights, its starting column and how fast it converges.

    Arguments are alpha, the orders [*c]; taylor, the number of Taylor terms; m, how often the data are differenced;
    lags or rows, [k]; and a namespace xp.

    Attributes:
        name: The name that users pass as `scheme`.
        weights: (alpha, taylor, m, lags, xp) -> weights [*c, k] at the given lags, for dt = 1.
        rate: (alpha) -> the order of convergence on smooth data, at a fixed time.
        uniform_rate: (alpha, subtracts) -> the order of the largest error of all samples but the first, on smooth data
            that are zero at the first where no Taylor polynomial is subtracted. Not positive: it does not converge.
        start: (alpha, taylor, m, rows, xp) -> the starting column [*c, k] at the given rows; None where there
            is none.
        start_index: (taylor) -> the index of the entry of d, the differenced data, that the starting column multiplies,
            or None where there is no such column for these terms; None where the scheme has no starting column.
        pieces: (samples [..., n], steps [..., n - 1], xp) -> of the interpolant's derivative, or for an integral of the
            interpolant, the mean on each cell and, if it is not constant there, half its increase over the cell, each
            [..., n - 1], at times of any spacing; None where the scheme needs equal steps.
        power: (alpha, taylor) -> the order of the integral that is taken of these pieces.
    """

    name: str
    weights: Callable[..., Any]
    rate: Callable[[float], float]
    uniform_rate: Callable[[float, bool], float]
    start: Callable[..., Any] | None = None
    start_index: Callable[[int], int | None] | None = None
    pieces: Callable[..., Any] | None = None
    power: Callable[..., Any] | None = None


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "l1",
            interpolation.l1_weights,
            interpolation.l1_rate,
            interpolation.l1_uniform_rate,
            start=interpolation.l1_start,
            start_index=interpolation.l1_start_index,
            pieces=interpolation.l1_pieces,
            power=interpolation.l1_power,
        ),
        Scheme(
            "l1_2",
            interpolation.l1_2_weights,
            interpolation.l1_2_rate,
            interpolation.l1_2_uniform_rate,
            start=interpolation.l1_2_start,
            start_index=interpolation.l1_2_start_index,
            pieces=interpolation.l1_2_pieces,
            power=interpolation.l1_2_power,
        ),
        Scheme("grunwald", differences.grunwald_weights, differences.grunwald_rate, differences.grunwald_uniform_rate),
        Scheme(
            "bdf2",
            differences.bdf2_weights,
            differences.bdf2_rate,
            differences.bdf2_uniform_rate,
            start=differences.bdf2_start,
            start_index=differences.bdf2_start_index,
        ),
        Scheme(
            "trapezoid",
            interpolation.trapezoid_weights,
            interpolation.trapezoid_rate,
            interpolation.trapezoid_uniform_rate,
            pieces=interpolation.trapezoid_pieces,
            power=interpolation.trapezoid_power,
        ),
        Scheme("centred", differences.centred_weights, differences.centred_rate, differences.centred_uniform_rate),
    )
}
