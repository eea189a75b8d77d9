"""Equivalent circuits of electrochemistry and dielectrics: elements in series, `a - b`, and in parallel, `a | b`.

The impedance F(s) at s = i omega is voltage over current, with exp(+i omega t): a capacitor has a negative imaginary
part. Units are the caller's, here ohm, farad, henry and s. The elements `HavriliakNegami`, `ColeCole` and
`ColeDavidson` are those of dielectrics too, where R is the strength of the relaxation, and a `Resistor` in series the
permittivity at high frequencies.

Barsoukov & Macdonald, Impedance Spectroscopy (2018), chapters 1 and 2; Lasia, Electrochemical Impedance Spectroscopy
and its Applications (2014), chapters 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.models.evaluate import evaluated
from hpfracc_nn.models.experiments import Experiment
from hpfracc_nn.models.model import PARALLEL, SERIES, Arrangement, Model, Parameter
from hpfracc_nn.models.networks import (
    Diffusion,
    Network,
    Power,
    Values,
    inverse,
    on_axis,
)
from hpfracc_nn.models.networks import HavriliakNegami as HavriliakNegamiNetwork


@dataclass(frozen=True)
class Circuit(Model):
    """An equivalent circuit, or one element of it.

    Parameters may be numbers or arrays, which broadcast with frequencies. Gradients in torch and JAX reach every
    parameter that is an array.

    Examples:
        >>> isinstance(Resistor(R=1) | Capacitor(C=1), Circuit)
        True
    """

    domain = "impedance"
    adds = SERIES

    def impedance(self, omega: Any) -> Array:
        """Return the complex impedance Z at angular frequencies omega > 0.

        Raises:
            TypeError: `omega` is not an array of real numbers, or of another framework than parameters.
            ValueError: A parameter is unknown, or a frequency is not positive; in tensors and JAX arrays it gives NaN.

        Examples:
            >>> (Resistor(R=1) - Capacitor(C=0.5)).impedance([2.0])
            array([1.-1.j])
        """
        return evaluated("impedance", "omega", _harmonic, self._known("impedance"), omega, is_complex=True)

    def __sub__(self, other: Circuit) -> Circuit:
        """Return this circuit and `other` in series."""
        parts = self._beside(SERIES, other)
        return NotImplemented if parts is None else _CircuitArrangement(SERIES, parts)

    def __or__(self, other: Circuit) -> Circuit:
        """Return this circuit and `other` in parallel."""
        parts = self._beside(PARALLEL, other)
        return NotImplemented if parts is None else _CircuitArrangement(PARALLEL, parts)


class _CircuitArrangement(Arrangement, Circuit):
    """Circuits in series or in parallel."""


def _harmonic(network: Network, omega: Array, values: Values, xp: Namespace) -> Array:
    return network.value(on_axis(omega, xp), values, xp)


@dataclass(frozen=True)
class Resistor(Circuit):
    """Z = R.

    Attributes:
        R: Resistance, in ohm.

    Examples:
        >>> (Resistor(R=2) | Resistor(R=2)).impedance(1.0)
        np.complex128(1+0j)
    """

    R: Parameter = None

    def _network(self) -> Network:
        return Power(self.R, 0)


@dataclass(frozen=True)
class Capacitor(Circuit):
    """Z = 1 / (C s).

    Attributes:
        C: Capacitance, in farad.

    Examples:
        >>> Capacitor(C=0.5).impedance(1.0).round(12)
        np.complex128(-2j)
    """

    C: Parameter = None

    def _network(self) -> Network:
        return inverse(Power(self.C, 1))


@dataclass(frozen=True)
class Inductor(Circuit):
    """Z = L s.

    Attributes:
        L: Inductance, in henry.

    Examples:
        >>> Inductor(L=2).impedance(1.0).round(12)
        np.complex128(2j)
    """

    L: Parameter = None

    def _network(self) -> Network:
        return Power(self.L, 1)


@dataclass(frozen=True)
class ConstantPhase(Circuit):
    """A constant phase element: Z = 1 / (Q s**alpha), a capacitor of fractional order.

    Attributes:
        Q: Coefficient, in s**alpha / ohm.
        alpha: Order, in [0, 1]; 1 is a capacitor.

    Source: Barsoukov & Macdonald (2018), section 2.1.

    Examples:
        >>> ConstantPhase(Q=1, alpha=0.5).impedance(2.0).round(12)
        np.complex128(0.5-0.5j)
    """

    Q: Parameter = None
    alpha: Parameter = None

    def _network(self) -> Network:
        return inverse(Power(self.Q, self.alpha))


@dataclass(frozen=True)
class Warburg(Circuit):
    """Diffusion into a half-space: Z = sigma (1 - i) / sqrt(omega) = sigma sqrt(2 / s).

    Attributes:
        sigma: Warburg coefficient, in ohm / sqrt(s).

    Source: Barsoukov & Macdonald (2018), section 2.1.

    Examples:
        >>> Warburg(sigma=3).impedance(1.0).round(12)
        np.complex128(3-3j)
    """

    sigma: Parameter = None

    def _network(self) -> Network:
        return Power(self.sigma, -0.5, 0.5)


@dataclass(frozen=True)
class FiniteWarburg(Circuit):
    """Diffusion through a layer to where the concentration is kept: Z = R tanh(y) / y, y = (tau s)**alpha.

    Also called finite-length Warburg, with a transmissive boundary: at low frequencies it is a resistor.

    Attributes:
        R: Z at low frequencies, in ohm.
        tau: Time of diffusion, thickness**2 / diffusivity, in s.
        alpha: 0.5 for diffusion; another order, or None, is the generalised element.

    Source: Barsoukov & Macdonald (2018), section 2.1.

    Examples:
        >>> FiniteWarburg(R=3, tau=1).impedance(1e-6).round(5)
        np.complex128(3-0j)
    """

    R: Parameter = None
    tau: Parameter = None
    alpha: Parameter = 0.5

    def _network(self) -> Network:
        return Diffusion(self.R, self.tau, self.alpha)


@dataclass(frozen=True)
class BlockedWarburg(Circuit):
    """Diffusion into a layer that nothing leaves at the far end: Z = R coth(y) / y, y = (tau s)**alpha.

    Also called finite-space Warburg, with a reflective boundary: at low frequencies it is a capacitor tau / R with a
    resistor R / 3 in series.

    Attributes:
        R: Coefficient, three times the resistance at low frequencies, in ohm.
        tau: Time of diffusion, thickness**2 / diffusivity, in s.
        alpha: 0.5 for diffusion; another order, or None, is the generalised element.

    Source: Barsoukov & Macdonald (2018), section 2.1.

    Examples:
        >>> BlockedWarburg(R=3, tau=1).impedance(1e-3).round(3)
        np.complex128(1-3000j)
    """

    R: Parameter = None
    tau: Parameter = None
    alpha: Parameter = 0.5

    def _network(self) -> Network:
        return Diffusion(self.R, self.tau, self.alpha, is_blocked=True)


@dataclass(frozen=True)
class Gerischer(Circuit):
    """Diffusion with a reaction: Z = R / sqrt(1 + tau s).

    Attributes:
        R: Z at low frequencies, in ohm.
        tau: Time of the reaction, in s.

    Source: Lasia (2014), section 4.8.

    Examples:
        >>> Gerischer(R=2, tau=1).impedance(1e-9).round(6)
        np.complex128(2-0j)
    """

    R: Parameter = None
    tau: Parameter = None

    def _network(self) -> Network:
        return HavriliakNegamiNetwork(self.R, self.tau, 1.0, 0.5)


@dataclass(frozen=True)
class HavriliakNegami(Circuit):
    """`Z = R / (1 + (tau s)**alpha)**gamma`.

    Attributes:
        R: Z at low frequencies, in ohm.
        tau: Relaxation time, in s.
        alpha: Order, in [0, 1]; it makes the peak of the loss wide.
        gamma: Exponent, in [0, 1]; it makes the peak asymmetric.

    Source: Havriliak & Negami, Polymer 8 (1967) 161.

    Examples:
        >>> HavriliakNegami(R=2, tau=1, alpha=1, gamma=1).impedance(1.0)
        np.complex128(1-1j)
    """

    R: Parameter = None
    tau: Parameter = None
    alpha: Parameter = None
    gamma: Parameter = None

    def _network(self) -> Network:
        return HavriliakNegamiNetwork(self.R, self.tau, self.alpha, self.gamma)


@dataclass(frozen=True)
class ColeCole(Circuit):
    """Z = R / (1 + (tau s)**alpha), a depressed semicircle.

    This is the impedance of a resistor in parallel with a constant phase element, Q = tau**alpha / R, also called ZARC.

    Attributes:
        R: Z at low frequencies, in ohm.
        tau: Relaxation time, in s.
        alpha: Order, in [0, 1].

    Source: Cole & Cole, J. Chem. Phys. 9 (1941) 341.

    Examples:
        >>> cell = Resistor(R=8) | ConstantPhase(Q=0.25, alpha=0.5)
        >>> bool(
        ...     np.isclose(cell.impedance(3.0), ColeCole(R=8, tau=4, alpha=0.5).impedance(3.0))
        ... )
        True
    """

    R: Parameter = None
    tau: Parameter = None
    alpha: Parameter = None

    def _network(self) -> Network:
        return HavriliakNegamiNetwork(self.R, self.tau, self.alpha, 1.0)


ZARC = ColeCole


@dataclass(frozen=True)
class ColeDavidson(Circuit):
    """Z = R / (1 + tau s)**gamma.

    Attributes:
        R: Z at low frequencies, in ohm.
        tau: Relaxation time, in s.
        gamma: Exponent, in [0, 1].

    Source: Davidson & Cole, J. Chem. Phys. 19 (1951) 1484.

    Examples:
        >>> ColeDavidson(R=2, tau=1, gamma=1).impedance(1.0)
        np.complex128(1-1j)
    """

    R: Parameter = None
    tau: Parameter = None
    gamma: Parameter = None

    def _network(self) -> Network:
        return HavriliakNegamiNetwork(self.R, self.tau, 1.0, self.gamma)


CIRCUITS: dict[str, type[Circuit]] = {
    "resistor": Resistor,
    "capacitor": Capacitor,
    "inductor": Inductor,
    "constant_phase": ConstantPhase,
    "warburg": Warburg,
    "finite_warburg": FiniteWarburg,
    "blocked_warburg": BlockedWarburg,
    "gerischer": Gerischer,
    "cole_cole": ColeCole,
    "zarc": ZARC,
    "cole_davidson": ColeDavidson,
    "havriliak_negami": HavriliakNegami,
}

_UNDERFIT = 0.85  # mu at which no further relaxations are taken, by Schonleber et al.
_OTHER_TERMS = 3  # R, L and C
_PER_DECADE = 2, 8  # relaxation times, at least and at most; with fewer a misfit, too, has strengths of both signs


def has_turned_sign(model: Model, spectrum: Experiment) -> bool:
    """Return whether most imaginary parts of a spectrum are positive although the model has no inductor.

    Without an inductor no imaginary part is positive; many instruments export -Z''.

    Examples:
        >>> spectrum = Experiment.impedance([1.0, 2.0], [1 + 2j, 1 + 1j])
        >>> (
        ...     has_turned_sign(Resistor() - Capacitor(), spectrum),
        ...     has_turned_sign(Inductor(), spectrum),
        ... )
        (True, False)
    """
    return bool(np.mean(spectrum.observed[-1] > 0) > 0.5) and not _has_inductor(model)


def _has_inductor(model: Model) -> bool:
    if isinstance(model, Arrangement):
        return any(_has_inductor(each) for each in model.parts)
    return isinstance(model, Inductor)


class KramersKronig(NamedTuple):
    """How well a spectrum obeys the Kramers-Kronig relations, as one of a linear, causal and stable system does.

    Attributes:
        omega: Angular frequencies, [n].
        residuals: Residuals of real and imaginary part relative to the modulus, [2, n].
        terms: How many relaxations were fitted.
        mu: 1 less the weight of negative relaxations over that of positive ones; far below 0.85 noise is fitted.

    Examples:
        >>> check = KramersKronig(np.ones(2), np.array([[0.01, -0.02], [0.0, 0.01]]), 1, 1.0)
        >>> check.worst
        (1.0, 0.02)
    """

    omega: np.ndarray
    residuals: np.ndarray
    terms: int
    mu: float

    @property
    def deviation(self) -> float:
        """The noise of the data, relative to the modulus, where they obey the relations.

        The root of the sum of squared residuals over the degrees of freedom that the fit leaves, 2 n - terms - 3; NaN
        where it leaves none.
        """
        freedom = self.residuals.size - self.terms - _OTHER_TERMS
        return float(np.sqrt(np.sum(self.residuals**2) / freedom)) if freedom > 0 else np.nan

    @property
    def worst(self) -> tuple[float, float]:
        """The angular frequency of the largest residual, and that residual."""
        size = np.abs(self.residuals).max(axis=0)
        return float(self.omega[size.argmax()]), float(size.max())


def kramers_kronig(spectrum: Experiment, *, terms: int | None = None) -> KramersKronig:
    """Return the residuals of a fit by relaxations, which obey the Kramers-Kronig relations whatever their strengths.

    A sum R + sum_k R_k / (1 + tau_k s) + L s + 1 / (C s) at fixed times tau_k is fitted by linear least squares; if the
    data obey the relations, the residuals are their noise. More relaxations are taken until strengths of both signs
    show that noise is fitted.

    Args:
        spectrum: An experiment made by `Experiment.impedance` or `Experiment.oscillation`.
        terms: How many relaxations are fitted; None chooses.

    Raises:
        ValueError: The experiment is in time, or has fewer than four frequencies.

    Source: Boukamp, J. Electrochem. Soc. 142 (1995) 1885; Schonleber, Klotz & Ivers-Tiffee, Electrochim. Acta 131
    (2014) 20.

    Examples:
        >>> omega = np.geomspace(0.1, 1000, 30)
        >>> cell = Resistor(R=1) - ColeCole(R=5, tau=0.1, alpha=0.8)
        >>> check = kramers_kronig(Experiment.impedance(omega, cell.impedance(omega)))
        >>> check.deviation < 1e-3
        True
    """
    owner = "kramers_kronig"
    if not (isinstance(spectrum, Experiment) and len(spectrum.observed) == 2):
        raise ValueError(
            f"{owner}(spectrum): needs an experiment in omega; pass Experiment.impedance(omega, impedance)."
        )
    omega, observed = spectrum.x, spectrum.observed[0] + 1j * spectrum.observed[1]
    if omega.size < 4:
        raise ValueError(f"{owner}(spectrum of {omega.size} frequencies): needs at least four; measure at more.")
    least, most = (max(2, int(each * np.log10(omega[-1] / omega[0]))) for each in _PER_DECADE)
    wanted = range(min(least, omega.size - 2), min(most, omega.size - 1) + 1)
    if terms is not None:
        wanted = range(errors.count(owner, "terms", terms, 2), terms + 1)
    found = None
    for count in wanted:
        found = _relaxations(omega, observed, count, spectrum.kind == "oscillation")
        if found.mu <= _UNDERFIT:
            break
    assert found is not None  # `wanted` has one number at least
    return found


def _relaxations(omega: np.ndarray, observed: np.ndarray, count: int, is_modulus: bool) -> KramersKronig:
    """Return the fit by `count` relaxations; those of a modulus are Maxwell models, time s / (1 + time s)."""
    s = 1j * omega
    times = np.geomspace(1 / omega[-1], 1 / omega[0], count)
    relaxations = ((time * s if is_modulus else 1) / (1 + time * s) for time in times)
    columns = np.stack([np.ones_like(s), s / omega[-1], omega[0] / s, *relaxations], axis=-1)
    weighted = columns / np.abs(observed)[:, None]
    rows, target = (np.concatenate([each.real, each.imag]) for each in (weighted, observed / np.abs(observed)))
    strengths = np.linalg.lstsq(rows, target, rcond=None)[0]
    residuals = (target - rows @ strengths).reshape(2, -1)
    relaxed = strengths[_OTHER_TERMS:]
    positive, negative = relaxed[relaxed >= 0].sum(), -relaxed[relaxed < 0].sum()
    return KramersKronig(omega, residuals, count, float(1 - negative / positive) if positive else -np.inf)
