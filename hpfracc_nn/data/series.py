"""Series in time: shipped by a package, read from a file, or drawn from a process with long memory."""

import csv
import importlib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy import signal

from hpfracc_nn import errors
from hpfracc_nn.series.covariance import noise
from hpfracc_nn.solvers.noise import FractionalBrownian, increments

MOST_NAMED = 20  # columns that a message names
MOST_SHOWN = 40  # characters that a message shows of a field


def log_parkinson(high: Any, low: Any) -> np.ndarray:
    """Return the logarithm of Parkinson's variance of each day, log(log(high / low)**2 / (4 log 2)).

    Args:
        high: Highest price of each day, shape [days].
        low: Lowest price of each day, shape [days].

    Raises:
        ValueError: Some day does not have high > low > 0.

    Source: Parkinson, The Extreme Value Method for Estimating the Variance of the Rate of Return,
    Journal of Business 53 (1980).

    Examples:
        >>> log_parkinson([np.exp(0.02)], [1.0]).round(4)  # log(0.02**2 / (4 log 2))
        array([-8.8438])
    """
    high, low = np.asarray(high, np.float64), np.asarray(low, np.float64)
    wrong = np.flatnonzero(~((high > low) & (low > 0)))
    if wrong.size:
        day = wrong[0]
        raise ValueError(
            f"log_parkinson(high, low): needs high > low > 0 on every day; day {day} has high={high[day]}, "
            f"low={low[day]}; leave such days out."
        )
    return np.log(np.log(high / low) ** 2 / (4 * math.log(2)))


def sp500_volatility(days: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Return the last `days` dates and log Parkinson ranges of the S&P 500 up to the end of 2018.

    The prices are those that the `arch` package ships (1999 to 2018, 5031 days).

    Returns:
        Dates, datetime64[D] of shape [days], and `log_parkinson` of the prices on these days, float64 of shape [days].

    Raises:
        ModuleNotFoundError: `arch` is not installed.
        ValueError: `days` is not positive, or more than there are.

    Examples:
        >>> dates, values = sp500_volatility(days=250)
        >>> str(dates[-1]), values.shape
        ('2018-12-31', (250,))
    """
    prices = _shipped_prices()
    if not 0 < days <= len(prices):
        raise ValueError(f"sp500_volatility(days={days}): needs 0 < days <= {len(prices)}; pass fewer days.")
    prices = prices.iloc[-days:]
    dates = prices.index.to_numpy().astype("datetime64[D]")
    return dates, log_parkinson(prices["High"].to_numpy(), prices["Low"].to_numpy())


def read_header(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the columns of a comma separated file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not text in UTF-8, or is empty.

    Examples:
        >>> with open("relaxation.csv", "w") as file:
        ...     print("t, G", file=file)
        >>> read_header("relaxation.csv")
        ['t', 'G']
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {str(path)!r}; pass the path of a comma separated file with a header.")
    with open(path, newline="", encoding="utf-8-sig") as file:
        try:
            found = next(csv.reader(file, skipinitialspace=True), [])
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: needs text in UTF-8; {error}; save it as UTF-8.") from None
    if not found:
        raise ValueError(f"{path}: needs a header, the names of its columns; the file is empty.")
    return [each.strip() for each in found]


def read_column(path: str | os.PathLike[str], column: str) -> np.ndarray:
    """Return one column of a comma separated file with a header, in the order of its lines.

    Args:
        path: Path of the file.
        column: Name of the column in the header.

    Returns:
        float64, shape [lines].

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not text in UTF-8, has no such column, or two of that name; or a line has no finite
            number in the column, more fields than the header, or quotes that do not close.

    Examples:
        >>> with open("prices.csv", "w") as file:
        ...     for line in ("day, close", "1, 2.5", "2, 2.75"):
        ...         print(line, file=file)
        >>> read_column("prices.csv", "close")
        array([2.5 , 2.75])
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {str(path)!r}; pass the path of a comma separated file with a header.")
    values = []
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        try:
            header = next(reader, [])
            place = _column_number(path, header, column)
            for fields in reader:
                if fields:  # none in an empty line
                    where = f"{path}, line {reader.line_num}"
                    _check_length(where, fields, header)
                    text = fields[place] if place < len(fields) else None
                    values.append(_finite(text, f"{where}, column {column!r}"))
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {reader.line_num}: needs fields that are separated by commas, and quotes that close; "
                f"{error}; look for a quote too many there or above."
            ) from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: needs text in UTF-8; {error}; save it as UTF-8.") from None
    return np.array(values, np.float64)


def arfima(n: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Return `n` samples of Gaussian ARFIMA(0, alpha, 0) with innovations of variance 1.

    Exact: the samples have the stationary autocovariance to rounding, with no burn-in. The circulant that
    embeds it is nonnegative for each alpha here, so the method never fails. O(n log n).

    Args:
        n: Number of samples.
        alpha: Order of integration, usually called d; -1/2 < alpha < 1/2.
        rng: Where the randomness comes from.

    Raises:
        ValueError: `n` is not positive, or `alpha` is outside its range.

    Source: Davies & Harte, Tests for Hurst Effect, Biometrika 74 (1987); nonnegative by Craigmile,
    Journal of Time Series Analysis 24 (2003).

    Examples:
        >>> x = arfima(100_000, 0.3, np.random.default_rng(0))
        >>> # its law at lag 1
        >>> bool(abs(np.mean(x[1:] * x[:-1]) / arfima_covariance(2, 0.3)[1] - 1) < 0.1)
        True
    """
    if n < 1:
        raise ValueError(f"arfima(n={n}): needs n >= 1; pass the number of samples.")
    if not -0.5 < alpha < 0.5:
        raise ValueError(
            f"arfima(alpha={alpha}): needs -1/2 < alpha < 1/2 to be stationary; "
            "generate alpha - 1 and take numpy.cumsum of it."
        )
    covariance = arfima_covariance(n + 1, alpha)
    spectrum = np.fft.rfft(np.concatenate([covariance, covariance[-2:0:-1]])).real
    spectrum = np.maximum(spectrum, 0)  # rounding may leave -1e-16 where it is 0
    noise = np.fft.rfft(rng.standard_normal(2 * n))
    return np.fft.irfft(np.sqrt(spectrum) * noise, 2 * n)[:n]


def arfima_covariance(n: int, alpha: float) -> np.ndarray:
    """Return the autocovariance of ARFIMA(0, alpha, 0) at lags 0 to n - 1, for innovations of variance 1.

    Args:
        n: Number of lags.
        alpha: As in `arfima`.

    Returns:
        float64, shape [n].

    Source: Hosking, Fractional Differencing, Biometrika 68 (1981), theorem 1.

    Examples:
        >>> covariance = arfima_covariance(2, 0.3)
        >>> float((covariance[1] / covariance[0]).round(4))  # alpha / (1 - alpha)
        0.4286
    """
    return noise(n, alpha)


def fgn(n: int, hurst: float, rng: np.random.Generator) -> np.ndarray:
    """Return `n` samples of fractional Gaussian noise: the increments of fractional Brownian motion over unit steps.

    Exact, of variance 1; numpy.cumsum of it is the motion. O(n log n).

    Args:
        n: Number of samples.
        hurst: Hurst exponent, in (0, 1); 1/2 is white noise.
        rng: Where the randomness comes from.

    Raises:
        ValueError: `n` is not positive, or `hurst` is outside its range.

    Source: Mandelbrot & Van Ness, SIAM Review 10 (1968) 422; Davies & Harte, Biometrika 74 (1987) 95.

    Examples:
        >>> fgn(1000, 0.3, np.random.default_rng(0)).shape
        (1000,)
    """
    return increments(FractionalBrownian(hurst), errors.count("fgn", "n", n), dt=1.0, rng=rng)


def rfsv(
    n: int,
    rng: np.random.Generator,
    *,
    hurst: float = 0.14,
    vol_of_vol: float = 0.3,
    reversion: float = 5e-4,
    mean: float = -5.0,
    noise: float = 0.0,
) -> np.ndarray:
    """Return `n` daily logarithms of a volatility, by the rough fractional stochastic volatility model.

    dX = vol_of_vol dB - reversion (X - mean) dt, B of Hurst index `hurst`, X(0) = mean: a fractional
    Ornstein-Uhlenbeck process whose reversion takes years. Over a day, exp(-reversion / 2) times the increment stands
    for the exact integral, with an error of `reversion` times the increment at most. The defaults are those of the
    paper named below for the S&P 500.

    Args:
        n: Number of days.
        rng: Where the randomness comes from.
        hurst: Hurst exponent, in (0, 1).
        vol_of_vol: Standard deviation of a day's change, positive.
        reversion: Rate of reversion per day, from 0 to 0.1.
        mean: Mean of the logarithm in the long run.
        noise: Standard deviation of the independent error of an estimate of each day's logarithm.

    Raises:
        ValueError: An argument is out of range.

    Source: Gatheral, Jaisson & Rosenbaum, Quant. Finance 18 (2018) 933, section 3.

    Examples:
        >>> rfsv(1000, np.random.default_rng(0)).shape
        (1000,)
    """
    if not 0 < vol_of_vol < math.inf:
        raise ValueError(f"rfsv(vol_of_vol={vol_of_vol}): needs a finite vol_of_vol > 0; pass for example 0.3.")
    if not 0 <= reversion <= 0.1:
        raise ValueError(f"rfsv(reversion={reversion}): needs 0 <= reversion <= 0.1 a day; pass for example 5e-4.")
    if not 0 <= noise < math.inf:
        raise ValueError(f"rfsv(noise={noise}): needs a finite noise >= 0; pass for example 0.2.")
    driven = vol_of_vol * math.exp(-reversion / 2) * fgn(errors.count("rfsv", "n", n), hurst, rng)[:-1]
    deviation = signal.lfilter([1.0], [1.0, -math.exp(-reversion)], np.concatenate([[0.0], driven]))
    return mean + deviation + noise * rng.standard_normal(n)


def _shipped_prices() -> Any:
    try:
        sp500 = importlib.import_module("arch.data.sp500")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in {"arch", "pandas"}:
            raise
        raise ModuleNotFoundError(
            f"sp500_volatility(): needs the package {error.name.split('.')[0]!r} for the prices; "
            "pip install 'hpfracc-nn[data]', or use a series of your own.",
            name=error.name,
        ) from None
    return sp500.load()


def _column_number(path: str | os.PathLike[str], header: list[str], column: str) -> int:
    """Return the number, from 0, of the column with the name `column`; raise ValueError unless there is exactly one.

    Args:
        path: The file, for messages.
        header: The names of its columns.
        column: The name of the wanted column.
    """
    places = [place for place, name in enumerate(header) if name == column]
    if not places:
        known = ", ".join([*map(repr, header[:MOST_NAMED]), *["..."] * (len(header) > MOST_NAMED)]) or "none"
        raise ValueError(f"{path}: no column {column!r}; pass one of the columns there are: {known}.")
    if len(places) > 1:
        numbers = ", ".join(str(place + 1) for place in places)
        raise ValueError(
            f"{path}: needs one column {column!r}, and columns {numbers} have that name; rename all but one."
        )
    return places[0]


def _check_length(place: str, fields: list[str], header: list[str]) -> None:
    if any(fields[len(header) :]):
        raise ValueError(
            f"{place}: needs {len(header)} fields as the header has, holds {len(fields)}; "
            "quote numbers and texts that hold a comma."
        )


def _finite(text: str | None, place: str) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        shown = repr(text) if text is None or len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]!r}..."
        raise ValueError(f"{place}: needs a finite number, holds {shown}; fill the gap or leave the line out.")
    return value
