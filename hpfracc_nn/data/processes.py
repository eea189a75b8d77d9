"""Relaxation, creep and subdiffusion from their closed forms, with noise: data from which orders can be identified."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpfracc_nn.fractional.special.functions import mittag_leffler


def relaxation(
    t: Any, alpha: float, *, rate: float = 1.0, noise: float = 0.0, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Return the solution of D^alpha y = -rate y, y(0) = 1, at times `t`, with noise: E_alpha(-rate t**alpha).

    The stress of a fractional Maxwell element that is held at a strain relaxes like this, and each mode of a
    subdiffusion decays like this.

    Args:
        t: Times, none negative; any shape.
        alpha: Order of Caputo's derivative, in (0, 1].
        rate: Rate of the relaxation, positive, in units of 1 / time**alpha.
        noise: Standard deviation of the Gaussian noise that is added.
        rng: Generator of the noise; needed where `noise` is not 0.

    Raises:
        ValueError: An argument is out of range, or `rng` is missing.

    Source: Mainardi, Fractional Calculus and Waves in Linear Viscoelasticity (2010), equation (E.55).

    Examples:
        >>> relaxation([0.0, 1.0], 0.5).round(4)  # E_(1/2)(-1) = e erfc(1)
        array([1.    , 0.4276])
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

    `G(t) = equilibrium + (glass - equilibrium) E_alpha(-(t / tau)**alpha)`, the solution of
    `D^alpha G = (equilibrium - G) / tau**alpha`, G(0) = glass: a standard linear solid whose dashpot is a spring-pot.

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

    Examples:
        >>> # from 2 towards 1, as `relaxation` falls
        >>> zener([0.0, 1.0], 0.5, glass=2.0, equilibrium=1.0).round(4)
        array([2.    , 1.4276])
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

    `J(t) = (1 - E_alpha(-(t / tau)**alpha)) / modulus`, the solution of `D^alpha J = (1 / modulus - J) / tau**alpha`,
    J(0) = 0.

    Args:
        t: Times, none negative; any shape.
        alpha: Order of the spring-pot, in (0, 1].
        modulus: Modulus of the spring, positive.
        tau: The retardation time, positive.
        noise: As in `relaxation`.
        rng: As in `relaxation`.

    Raises:
        ValueError: An argument is out of range, or `rng` is missing.

    Source: Mainardi (2010), section 3.3.

    Examples:
        >>> creep([0.0, 1.0], 0.5).round(4)  # what `relaxation` has lost
        array([0.    , 0.5724])
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

    `u(t, x) = sum over k of modes[k - 1] sin(k pi x) E_alpha(-diffusivity (k pi)**2 t**alpha)`.

    Args:
        t: Times, none negative, [times].
        x: Places in [0, 1], [places].
        alpha: Order of Caputo's derivative in time, in (0, 1].
        diffusivity: Diffusivity, positive, in units of 1 / time**alpha.
        modes: Amplitudes of sin(pi x), sin(2 pi x), ... in u(0, x).
        noise: As in `relaxation`.
        rng: As in `relaxation`.

    Returns:
        [times, places].

    Raises:
        ValueError: An argument is out of range, or `rng` is missing.

    Source: Metzler & Klafter, Physics Reports 339 (2000) 1, section 3.5.

    Examples:
        >>> t, x = np.linspace(0, 0.1, 11), np.linspace(0, 1, 21)
        >>> u = subdiffusion(t, x, 0.5, modes=(1.0, 0.5))
        >>> u.shape, float(u[0, 5].round(4))  # sin(pi / 4) + sin(pi / 2) / 2
        ((11, 21), 1.2071)
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
    """Return `E_alpha(-rate t**alpha)` at the times t; raise ValueError where t or alpha is out of range.

    `owner` is the public function, for messages.
    """
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
