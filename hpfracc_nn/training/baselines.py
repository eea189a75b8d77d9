"""One-step forecasts to compare with: random walk, AR(p) and HAR, by least squares on the same span.

Each function takes a series [n] and the first held-out day `start`, and returns the forecasts of the
days start, ..., n - 1, shape [n - start]. Whatever is fitted is fitted on the days before `start`; the
forecast of a day uses the days before it.
"""

import numpy as np

from hpfracc_nn import errors

MONTH = 22  # trading days
HAR_MEANS = (1, 5, MONTH)  # day, week, month


def random_walk(series: np.ndarray, start: int) -> np.ndarray:
    """Return the forecasts of a random walk: for each day the value of the day before, [n - start]."""
    _check("random_walk", series, start, 1)
    return series[start - 1 : -1].copy()


def autoregression(series: np.ndarray, start: int, lags: int) -> np.ndarray:
    """Return the forecasts of an autoregression on the last `lags` days with a constant, [n - start].

    Raises:
        ValueError: There are too few days before `start` to determine the coefficients.
    """
    _check("autoregression", series, start, 2 * errors.count("autoregression", "lags", lags) + 1)
    past = [series[lags - lag : len(series) - lag] for lag in range(1, lags + 1)]
    return _least_squares(np.column_stack(past), series, start)


def har(series: np.ndarray, start: int) -> np.ndarray:
    """Return the forecasts of the heterogeneous autoregression, on the means of the last day, week and month.

    Raises:
        ValueError: There are too few days before `start`.

    Source: Corsi, A Simple Approximate Long-Memory Model of Realized Volatility, Journal of Financial
    Econometrics 7 (2009).
    """
    _check("har", series, start, MONTH + len(HAR_MEANS) + 1)
    windows = np.lib.stride_tricks.sliding_window_view(series, MONTH)[:-1]
    return _least_squares(np.column_stack([windows[:, -days:].mean(-1) for days in HAR_MEANS]), series, start)


def _least_squares(past: np.ndarray, series: np.ndarray, start: int) -> np.ndarray:
    """Regress the series before `start` on a constant and the columns of `past`; return the forecasts from `start` on.

    `past` are the features of the last days of the series, [days, features].
    """
    columns = np.column_stack([np.ones(len(past)), past])
    fitted = start - (len(series) - len(past))
    coefficients = np.linalg.lstsq(columns[:fitted], series[start - fitted : start], rcond=None)[0]
    return columns[fitted:] @ coefficients


def _check(owner: str, series: np.ndarray, start: int, least: int) -> None:
    if not least <= start < len(series):
        raise ValueError(
            f"{owner}(start={start}): needs {least} <= start < {len(series)}, the length of the series; "
            "pass a longer series or hold out fewer days."
        )
