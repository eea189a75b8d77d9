"""Series for the examples: loaded from packages that ship them, or generated; nothing is downloaded."""

import csv
import importlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import signal

from hpfracc_nn import errors
from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers.noise import FractionalBrownian, increments


def log_parkinson(high: Any, low: Any) -> np.ndarray:
    """Return the logarithm of Parkinson's variance of each day, log(log(high / low)**2 / (4 log 2)).

    Args:
        high: Highest price of each day, shape [days].
        low: Lowest price of each day, shape [days].

    Raises:
        ValueError: Some day does not have high > low > 0.

    Source: Parkinson, The Extreme Value Method for Estimating the Variance of the Rate of Return,
    Journal of Business 53 (1980).
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
        Dates, datetime64[D] of shape [days], and `log_parkinson` of them, float64 of shape [days].

    Raises:
        ModuleNotFoundError: `arch` is not installed.
        ValueError: `days` is not positive, or more than there are.
    """
    prices = _shipped_prices()
    if not 0 < days <= len(prices):
        raise ValueError(f"sp500_volatility(days={days}): needs 0 < days <= {len(prices)}; pass fewer days.")
    prices = prices.iloc[-days:]
    dates = prices.index.to_numpy().astype("datetime64[D]")
    return dates, log_parkinson(prices["High"].to_numpy(), prices["Low"].to_numpy())


def read_column(path: str | os.PathLike[str], column: str) -> np.ndarray:
    """Return one column of a comma separated file with a header, in the order of its lines.

    Returns:
        float64, shape [lines].

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It has no such column, or a line holds no finite number there.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {str(path)!r}; pass the path of a comma separated file with a header.")
    values = []
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        if column not in (reader.fieldnames or []):
            known = ", ".join(map(repr, reader.fieldnames or [])) or "none"
            raise ValueError(f"{path}: no column {column!r}; pass one of the columns there are: {known}.")
        for line in reader:
            values.append(_finite(line[column], f"{path}, line {reader.line_num}, column {column!r}"))
    return np.array(values)


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

    Source: Hosking, Fractional Differencing, Biometrika 68 (1981), theorem 1.
    """
    variance = math.exp(math.lgamma(1 - 2 * alpha) - 2 * math.lgamma(1 - alpha))
    lag = np.arange(1, n)
    ratios = (lag - 1 + alpha) / (lag - alpha)
    return variance * np.concatenate([[1.0], np.cumprod(ratios)])


def fgn(n: int, hurst: float, rng: np.random.Generator) -> np.ndarray:
    """Return `n` samples of fractional Gaussian noise: the increments of fractional Brownian motion over unit steps.

    Exact, of variance 1; numpy.cumsum of it is the motion. O(n log n).

    Args:
        n: Number of samples.
        hurst: In (0, 1); 1/2 is white noise.
        rng: Where the randomness comes from.

    Raises:
        ValueError: `n` is not positive, or `hurst` is outside its range.

    Source: Mandelbrot & Van Ness, SIAM Review 10 (1968) 422; Davies & Harte, Biometrika 74 (1987) 95.

    Example:
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
    for the exact integral, with an error of `reversion` times the increment at most. The defaults are the paper's for
    the S&P 500.

    Args:
        n: Number of days.
        rng: Where the randomness comes from.
        hurst: In (0, 1).
        vol_of_vol: Standard deviation of a day's change, positive.
        reversion: Per day, from 0 to 0.1.
        mean: Of the logarithm in the long run.
        noise: Standard deviation of what an estimate of each day's logarithm is off by, independently.

    Raises:
        ValueError: An argument is out of range.

    Source: Gatheral, Jaisson & Rosenbaum, Quant. Finance 18 (2018) 933, section 3.

    Example:
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


def relaxation(
    t: Any, alpha: float, *, rate: float = 1.0, noise: float = 0.0, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Return the solution of D^alpha y = -rate y, y(0) = 1, at times `t`, with noise: E_alpha(-rate t**alpha).

    So relaxes the stress of a fractional Maxwell element that is held at a strain, and so decays each mode of a
    subdiffusion.

    Args:
        t: Times, none negative; any shape.
        alpha: Of Caputo's derivative, in (0, 1].
        rate: Positive, in units of 1 / time**alpha.
        noise: Standard deviation of the Gaussian noise that is added.
        rng: Where it comes from; needed where there is any.

    Raises:
        ValueError: An argument is out of range, or `rng` is missing.

    Source: Mainardi, Fractional Calculus and Waves in Linear Viscoelasticity (2010), equation (E.55).
    """
    _check_positive("relaxation", rate=rate)
    return _noisy("relaxation", _decay("relaxation", t, alpha, rate), noise, rng)


def zener(
    t: Any,
    alpha: float,
    *,
    glass: float = 1.0,
    equilibrium: float = 0.2,
    tau: float = 1.0,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """Return the stress of a fractional Zener solid after a unit step of strain, at times `t`, with noise.

    G(t) = equilibrium + (glass - equilibrium) E_alpha(-(t / tau)**alpha), the solution of
    D^alpha G = (equilibrium - G) / tau**alpha, G(0) = glass: a standard linear solid whose dashpot is a spring-pot.

    Args:
        t: Times, none negative; any shape.
        alpha: Order of the spring-pot, in (0, 1].
        glass: The modulus at once, above `equilibrium`.
        equilibrium: The modulus in the end, not negative; 0 is Maxwell's fluid.
        tau: The relaxation time, positive.
        noise: As in `relaxation`.
        rng: As in `relaxation`.

    Raises:
        ValueError: An argument is out of range, or `rng` is missing.

    Source: Mainardi (2010), section 3.3.
    """
    _check_positive("zener", tau=tau)
    if not 0 <= equilibrium < glass < math.inf:
        raise ValueError(
            f"zener(glass={glass}, equilibrium={equilibrium}): needs 0 <= equilibrium < glass, both finite; the stress "
            "falls from the one to the other."
        )
    exact = equilibrium + (glass - equilibrium) * _decay("zener", t, alpha, tau**-alpha)
    return _noisy("zener", exact, noise, rng)


def creep(
    t: Any,
    alpha: float,
    *,
    modulus: float = 1.0,
    tau: float = 1.0,
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """Return the strain of a fractional Kelvin-Voigt solid after a unit step of stress, at times `t`, with noise.

    J(t) = (1 - E_alpha(-(t / tau)**alpha)) / modulus, the solution of D^alpha J = (1 / modulus - J) / tau**alpha,
    J(0) = 0.

    Args:
        t: Times, none negative; any shape.
        alpha: Order of the spring-pot, in (0, 1].
        modulus: Of the spring, positive.
        tau: The retardation time, positive.
        noise: As in `relaxation`.
        rng: As in `relaxation`.

    Raises:
        ValueError: An argument is out of range, or `rng` is missing.

    Source: Mainardi (2010), section 3.3.
    """
    _check_positive("creep", modulus=modulus, tau=tau)
    scaled = -(tau**-alpha) * _checked_times("creep", t, alpha) ** alpha
    # z E_(alpha, 1 + alpha)(z) = E_alpha(z) - 1, without the difference: early strains keep their digits.
    exact = -scaled * mittag_leffler(scaled, alpha, 1 + alpha) / modulus
    return _noisy("creep", exact, noise, rng)


def subdiffusion(
    t: Any,
    x: Any,
    alpha: float,
    *,
    diffusivity: float = 1.0,
    modes: Sequence[float] = (1.0,),
    noise: float = 0.0,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """Return the solution of D^alpha u = diffusivity u_xx on [0, 1], u = 0 at both ends, with noise.

    u(t, x) = sum over k of modes[k - 1] sin(k pi x) E_alpha(-diffusivity (k pi)**2 t**alpha).

    Args:
        t: Times, none negative, [times].
        x: Places in [0, 1], [places].
        alpha: Of Caputo's derivative in time, in (0, 1].
        diffusivity: Positive, in units of 1 / time**alpha.
        modes: What u(0, x) has of sin(pi x), sin(2 pi x), ...
        noise: As in `relaxation`.
        rng: As in `relaxation`.

    Returns:
        [times, places].

    Raises:
        ValueError: An argument is out of range, or `rng` is missing.

    Source: Metzler & Klafter, Physics Reports 339 (2000) 1, section 3.5.
    """
    _check_positive("subdiffusion", diffusivity=diffusivity)
    places = np.asarray(x, dtype=np.float64)
    if not ((places >= 0) & (places <= 1)).all():
        raise ValueError("subdiffusion(x=...): needs places in [0, 1]; measure them in lengths of the interval.")
    k = np.arange(1, len(modes) + 1)
    rates = diffusivity * (math.pi * k) ** 2
    decays = np.stack([_decay("subdiffusion", t, alpha, rate) for rate in rates.tolist()], -1)  # [times, modes]
    return _noisy("subdiffusion", decays * np.asarray(modes) @ np.sin(math.pi * np.outer(k, places)), noise, rng)


def _decay(owner: str, t: Any, alpha: float, rate: float) -> np.ndarray:
    """E_alpha(-rate t**alpha)."""
    return mittag_leffler(-rate * _checked_times(owner, t, alpha) ** alpha, alpha)  # type: ignore[no-any-return]


def _checked_times(owner: str, t: Any, alpha: float) -> np.ndarray:
    times = np.asarray(t, dtype=np.float64)
    if not 0 < alpha <= 1:
        raise ValueError(f"{owner}(alpha={alpha}): needs 0 < alpha <= 1; above 1 the solution oscillates.")
    if not ((times >= 0) & (times < math.inf)).all():
        raise ValueError(f"{owner}(t=...): needs finite times, none negative; measure them from the start.")
    return times


def _check_positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{owner}({name}={value}): needs a finite {name} > 0; pass for example 1.0.")


def _noisy(owner: str, exact: np.ndarray, noise: float, rng: np.random.Generator | None) -> np.ndarray:
    if not 0 <= noise < math.inf:
        raise ValueError(f"{owner}(noise={noise}): needs a finite noise >= 0; pass a standard deviation such as 0.02.")
    if noise == 0:
        return exact
    if rng is None:
        raise ValueError(f"{owner}(noise={noise}): needs a generator; pass rng=numpy.random.default_rng(0).")
    return exact + noise * rng.standard_normal(exact.shape)


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


def _finite(text: str | None, place: str) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{place}: needs a finite number, holds {text!r}; fill the gap or leave the line out.")
    return value
