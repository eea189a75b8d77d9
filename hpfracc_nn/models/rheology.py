"""Linear viscoelastic models: spring-pots in series, `a - b`, and in parallel, `a | b`.

The complex modulus F(s) at s = i omega is stress over strain. Units are the caller's, here Pa and s; a spring-pot with
`stress = V D**alpha strain` has its quasi-property V in `Pa s**alpha`. It is a spring for alpha = 0, a dashpot for 1.

Schiessel, Metzler, Blumen & Nonnenmacher, J. Phys. A 28 (1995) 6567; Mainardi, Fractional Calculus and Waves in Linear
Viscoelasticity (2010), chapters 2 and 3; Jaishankar & McKinley, Proc. R. Soc. A 469 (2013) 20120284; Bonfanti, Kaplan,
Charras & Kabla, Soft Matter 16 (2020) 6002.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.dispatch import backend, framework_of, placed
from hpfracc_nn.fractional.namespace import NAMESPACES, Array, Namespace
from hpfracc_nn.models.evaluate import arrays_of, evaluated, float_dtype
from hpfracc_nn.models.model import PARALLEL, SERIES, Arrangement, Model, Parameter
from hpfracc_nn.models.networks import (
    Network,
    Power,
    Values,
    added,
    cell_integrals,
    inverse,
    joined,
    on_axis,
    on_reals,
    response,
)

_PAIR = ("V", "alpha", "G", "beta")


@dataclass(frozen=True)
class Material(Model):
    """A viscoelastic model: what a material does under small strains.

    Parameters may be numbers or arrays, which broadcast with times and frequencies. Responses are computed in double
    precision and are right to about 1e-13 of the modulus at that time; their gradients in torch and JAX reach every
    parameter that is an array.

    Examples:
        >>> solid = KelvinVoigt(eta=3, G=2)
        >>> isinstance(solid, Material), solid.storage(1.0), solid.loss(1.0)
        (True, np.float64(2.0), np.float64(3.0))
        >>> solid.loss_tangent(1.0)
        np.float64(1.5)
    """

    domain = "rheology"
    adds = PARALLEL

    def relaxation(self, t: Any) -> Array:
        """Return the relaxation modulus G(t): the stress at times t > 0 after a unit step of strain.

        Raises:
            TypeError: `t` is not an array of real numbers, or of another framework than parameters.
            ValueError: A parameter is unknown, or a time is not positive; in tensors and JAX arrays that gives NaN.

        Examples:
            >>> import numpy as np
            >>> G = FractionalMaxwell(V=1, alpha=0.5, G=1, beta=0).relaxation([1.0])
            >>> G.round(12)  # e erfc(1)
            array([0.42758358])
        """
        return evaluated("relaxation", "t", _step, self._known("relaxation"), t)

    def creep(self, t: Any) -> Array:
        """Return the creep compliance J(t): the strain at times t > 0 after a unit step of stress.

        Raises:
            TypeError: As in `relaxation`.
            ValueError: As in `relaxation`.

        Examples:
            >>> SpringPot(V=2, alpha=1).creep([1.0, 3.0])  # a dashpot
            array([0.5, 1.5])
        """
        return evaluated("creep", "t", _step, inverse(self._known("creep")), t)

    def complex_modulus(self, omega: Any) -> Array:
        """Return the complex modulus G*(omega) = G' + i G'' at angular frequencies omega > 0.

        Raises:
            TypeError: As in `relaxation`.
            ValueError: As in `relaxation`.

        Examples:
            >>> SpringPot(V=1, alpha=0.5).complex_modulus(2.0).round(12)
            np.complex128(1+1j)
        """
        network = self._known("complex_modulus")
        return evaluated("complex_modulus", "omega", _harmonic, network, omega, is_complex=True)

    def storage(self, omega: Any) -> Array:
        """Return the storage modulus G'(omega), the real part of `complex_modulus`; see there."""
        return self.complex_modulus(omega).real

    def loss(self, omega: Any) -> Array:
        """Return the loss modulus G''(omega), the imaginary part of `complex_modulus`; see there."""
        return self.complex_modulus(omega).imag

    def loss_tangent(self, omega: Any) -> Array:
        """Return tan delta = G'' / G'; see `complex_modulus`."""
        modulus = self.complex_modulus(omega)
        with np.errstate(divide="ignore"):  # infinite for a dashpot
            return modulus.imag / modulus.real

    def stress(self, strain: Any, *, dt: float = 1.0, dim: int = -1) -> Array:
        """Return the stress of any history of strain, which is 0 before its first sample.

        The strain between samples is interpolated as in the scheme L1-2 (by parabolas, in the first step linearly), and
        the memory is integrated exactly: the error is O(dt**2) or better for smooth strains. A strain that jumps at its
        first sample has there the stress of the discrete operator, F(1 / dt) times the jump.

        Args:
            strain: Samples at 0, dt, 2 dt, ..., shape [..., n, ...]; of any framework.
            dt: Spacing of the samples; positive.
            dim: The time axis.

        Returns:
            Shape, dtype and framework of `strain`. O(n log n).

        Raises:
            TypeError: As in `hpfracc_nn.derivative`.
            ValueError: A parameter is unknown or has axes, `dt` is not positive, or `dim` is no axis of `strain`.

        Source: Gao, Sun & Zhang, J. Comput. Phys. 259 (2014) 33, for L1-2.

        Examples:
            >>> import numpy as np
            >>> strain = np.linspace(0, 1, 101)
            >>> stress = SpringPot(V=1, alpha=0.5).stress(strain, dt=0.01)
            >>> float(stress[-1].round(6))  # 1 / Gamma(1.5)
            1.128379
        """
        return _history("stress", "strain", self._known("stress"), strain, dt, dim)

    def strain(self, stress: Any, *, dt: float = 1.0, dim: int = -1) -> Array:
        """Return the strain of any history of stress, which is 0 before its first sample; arguments as in `stress`.

        Examples:
            >>> import numpy as np
            >>> strain = SpringPot(V=1, alpha=0.5).strain(np.linspace(0, 1, 101), dt=0.01)
            >>> float(strain[-1].round(6))  # 1 / Gamma(2.5)
            0.752253
        """
        return _history("strain", "stress", inverse(self._known("strain")), stress, dt, dim)

    def __sub__(self, other: Material) -> Material:
        """Return this material and `other` in series."""
        parts = self._beside(SERIES, other)
        return NotImplemented if parts is None else _MaterialArrangement(SERIES, parts)

    def __or__(self, other: Material) -> Material:
        """Return this material and `other` in parallel."""
        parts = self._beside(PARALLEL, other)
        return NotImplemented if parts is None else _MaterialArrangement(PARALLEL, parts)


class _MaterialArrangement(Arrangement, Material):
    """Materials in series or in parallel."""


def _step(network: Network, t: Array, values: Values, xp: Namespace) -> Array:
    return response(network, t, 1, values, xp)


def _harmonic(network: Network, omega: Array, values: Values, xp: Namespace) -> Array:
    return network.value(on_axis(omega, xp), values, xp)


def _history(owner: str, name: str, network: Network, x: Any, dt: float, dim: int) -> Array:
    """Return samples of the response whose Laplace transform is F(s) times that of `x`: of x's shape and dtype.

    Args:
        owner: The public method, for messages.
        name: Name of the argument x, for messages.
        network: F, with parameters without axes.
        x: The samples, of any framework.
        dt: Spacing of the samples.
        dim: Time axis of the samples.
    """
    arrays = arrays_of(network)
    for wrong in (each for each in arrays if each.ndim):
        raise ValueError(
            f"{owner}(a parameter of shape {tuple(wrong.shape)}): needs parameters without axes; make a model for each "
            "of their values."
        )
    x, framework = placed(owner, name, x)
    learned = next((each for each in arrays if framework_of(type(each)) != "numpy"), None)
    if framework == "numpy" and learned is not None:
        framework = framework_of(type(learned))
    backend(framework)  # loads its namespace
    if framework_of(type(x)) != framework:
        x = NAMESPACES[framework].constant(np.asarray(x, dtype=np.float64), learned)
    dt, axis = errors.positive_step(owner, dt), errors.axis(owner, dim, x.ndim, array=name)
    xp, n = NAMESPACES[framework], x.shape[axis]
    dtype = float_dtype(owner, name, x, xp)
    if n == 0:
        return xp.astype(x, dtype)
    data = xp.asarray(xp.moveaxis(x, axis, -1))  # float64, where the framework has enabled it
    steps = dt * np.arange(max(1, n - 1) + 1.0)[1:]
    columns = xp.like(evaluated(owner, "t", _columns, network, steps, of=data), data)
    columns = columns.reshape(len(columns), *(1,) * (data.ndim - 1), -1)
    first, jump = data[..., :1], columns[0, ..., :1]
    if n == 1:
        return xp.astype(xp.moveaxis(first * jump, -1, axis), dtype)
    slopes = xp.diff(data, n=1, axis=-1) / dt
    bends = xp.diff(slopes, n=1, axis=-1) / dt
    found = first * columns[1] + xp.convolve(slopes, columns[2])
    found = found + xp.convolve(xp.pad(bends, 1, axis=-1), columns[3])
    return xp.astype(xp.moveaxis(xp.concat([first * jump, found], axis=-1), -1, axis), dtype)


def _columns(network: Network, t: Array, values: Values, xp: Namespace) -> Array:
    """Return the weights of a history at steps t = dt, 2 dt, ..., [4, n].

    With R the response to a step, the rows are F(1 / dt), R(t), and for each cell of lags the integrals of R and of R
    times the distance from the cell's middle.
    """
    whole, moment = cell_integrals(network, t, values, xp)
    jump = network.value(on_reals(-xp.log(t[:1]) + 0 * t, xp), values, xp)
    return xp.stack([jump, response(network, t, 1, values, xp), whole, moment], axis=0)


@dataclass(frozen=True)
class SpringPot(Material):
    """A spring-pot (Scott Blair element): `stress = V D**alpha strain`.

    G(t) = V t**-alpha / Gamma(1 - alpha).

    Attributes:
        V: Quasi-property, in Pa s**alpha.
        alpha: Order, in [0, 1].

    Source: Jaishankar & McKinley (2013), section 2.

    Examples:
        >>> float(SpringPot(V=3, alpha=0).relaxation(5.0))
        3.0
    """

    V: Parameter = None
    alpha: Parameter = None

    def _network(self) -> Network:
        return Power(self.V, self.alpha)


@dataclass(frozen=True)
class Spring(Material):
    """A spring: stress = G strain.

    Attributes:
        G: Modulus, in Pa.

    Examples:
        >>> Spring(G=2).creep([1.0, 2.0])
        array([0.5, 0.5])
    """

    G: Parameter = None

    def _network(self) -> Network:
        return Power(self.G, 0)


@dataclass(frozen=True)
class Dashpot(Material):
    """A dashpot: stress = eta d(strain)/dt.

    Attributes:
        eta: Viscosity, in Pa s.

    Examples:
        >>> Dashpot(eta=2).creep([1.0, 2.0])
        array([0.5, 1. ])
    """

    eta: Parameter = None

    def _network(self) -> Network:
        return Power(self.eta, 1)


@dataclass(frozen=True)
class FractionalMaxwell(Material):
    """Two spring-pots in series: SpringPot(V, alpha) - SpringPot(G, beta).

    `G(t) = G t**-beta E_(alpha - beta, 1 - beta)(-(G / V) t**(alpha - beta))`. The two may be exchanged; a fit returns
    alpha >= beta. With alpha = 1 and beta = 0 it is the Maxwell model.

    Attributes:
        V: Quasi-property of the spring-pot that flows, in Pa s**alpha.
        alpha: Order of this spring-pot, in [0, 1].
        G: Quasi-property of the other spring-pot, in Pa s**beta.
        beta: Order of the other spring-pot, in [0, 1]; 0 for a spring.

    Source: Schiessel et al. (1995), section 3; Jaishankar & McKinley (2013), equation 3.10.

    Examples:
        >>> gel = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2)
        >>> gel.relaxation([0.1, 1.0, 10.0]).round(4)
        array([5.7997, 2.3918, 0.487 ])
    """

    V: Parameter = None
    alpha: Parameter = None
    G: Parameter = None
    beta: Parameter = None

    exchangeable = _PAIR

    def _network(self) -> Network:
        return joined((Power(self.V, self.alpha), Power(self.G, self.beta)))


@dataclass(frozen=True)
class FractionalKelvinVoigt(Material):
    """Two spring-pots in parallel: SpringPot(V, alpha) | SpringPot(G, beta).

    `J(t) = t**alpha / V E_(alpha - beta, 1 + alpha)(-(G / V) t**(alpha - beta))`. The two may be exchanged; a fit
    returns alpha >= beta. With alpha = 1 and beta = 0 it is the Kelvin-Voigt model.

    Attributes:
        V: Quasi-property of the more viscous spring-pot, in Pa s**alpha.
        alpha: Order of this spring-pot, in [0, 1].
        G: Quasi-property of the other spring-pot, in Pa s**beta.
        beta: Order of the other spring-pot, in [0, 1]; 0 for a spring.

    Source: Schiessel et al. (1995), section 4.

    Examples:
        >>> solid = FractionalKelvinVoigt(V=1, alpha=0.5, G=1, beta=0)
        >>> solid.creep([1.0]).round(8)  # 1 - e erfc(1)
        array([0.57241642])
    """

    V: Parameter = None
    alpha: Parameter = None
    G: Parameter = None
    beta: Parameter = None

    exchangeable = _PAIR

    def _network(self) -> Network:
        return added((Power(self.V, self.alpha), Power(self.G, self.beta)))


@dataclass(frozen=True)
class FractionalZener(Material):
    """A spring beside a fractional Maxwell model: Spring(K) | (SpringPot(V, alpha) - SpringPot(G, beta)).

    A solid: it relaxes from power laws to K. With beta = 0 it is the fractional Zener model of one order, and with
    alpha = 1 besides the standard linear solid. One spring-pot more is `SpringPot() | FractionalMaxwell()`.

    Attributes:
        K: Modulus of the spring, in Pa.
        V: Quasi-property of the more viscous spring-pot, in Pa s**alpha.
        alpha: Order of this spring-pot, in [0, 1].
        G: Quasi-property of the other spring-pot, in Pa s**beta.
        beta: Order of the other spring-pot, in [0, 1]; 0 for a spring.

    Source: Schiessel et al. (1995), section 5; Mainardi (2010), section 3.1.

    Examples:
        >>> tissue = FractionalZener(K=1, V=2, alpha=0.3, G=9, beta=0)
        >>> tissue.relaxation([1e-6, 1.0, 1e6]).round(4)
        array([9.3328, 2.3534, 1.0244])
    """

    K: Parameter = None
    V: Parameter = None
    alpha: Parameter = None
    G: Parameter = None
    beta: Parameter = None

    exchangeable = _PAIR

    def _network(self) -> Network:
        maxwell = joined((Power(self.V, self.alpha), Power(self.G, self.beta)))
        return added((Power(self.K, 0), maxwell))


@dataclass(frozen=True)
class FractionalPoyntingThomson(Material):
    """A spring in series with a fractional Kelvin-Voigt model: Spring(K) - (SpringPot(V, alpha) | SpringPot(G, beta)).

    `J(t) = 1 / K + t**alpha / V E_(alpha - beta, 1 + alpha)(-(G / V) t**(alpha - beta))`. With alpha = 1 and beta = 0
    it is the standard linear solid in its other form.

    Attributes:
        K: Modulus of the spring, in Pa.
        V: Quasi-property of the more viscous spring-pot, in Pa s**alpha.
        alpha: Order of this spring-pot, in [0, 1].
        G: Quasi-property of the other spring-pot, in Pa s**beta.
        beta: Order of the other spring-pot, in [0, 1]; 0 for a spring.

    Source: Schiessel et al. (1995), section 6.

    Examples:
        >>> solid = FractionalPoyntingThomson(K=9, V=2, alpha=0.3, G=1, beta=0)
        >>> solid.creep([1e-9, 1e12]).round(4)
        array([0.1122, 1.1107])
    """

    K: Parameter = None
    V: Parameter = None
    alpha: Parameter = None
    G: Parameter = None
    beta: Parameter = None

    exchangeable = _PAIR

    def _network(self) -> Network:
        voigt = added((Power(self.V, self.alpha), Power(self.G, self.beta)))
        return joined((Power(self.K, 0), voigt))


@dataclass(frozen=True)
class FractionalJeffreys(Material):
    """A dashpot beside a fractional Maxwell model: Dashpot(eta) | (SpringPot(V, alpha) - SpringPot(G, beta)).

    A fluid with a solvent's viscosity eta. With alpha = 1 and beta = 0 it is the Jeffreys model.

    Attributes:
        eta: Viscosity of the dashpot, in Pa s.
        V: Quasi-property of the more viscous spring-pot, in Pa s**alpha.
        alpha: Order of this spring-pot, in [0, 1].
        G: Quasi-property of the other spring-pot, in Pa s**beta.
        beta: Order of the other spring-pot, in [0, 1]; 0 for a spring.

    Source: Mainardi (2010), section 2.4 for the classical model; Bonfanti et al. (2020).

    Examples:
        >>> fluid = FractionalJeffreys(eta=0.1, V=2, alpha=0.9, G=9, beta=0.1)
        >>> fluid.loss_tangent([0.01, 100.0]).round(3)
        array([6.3  , 1.022])
    """

    eta: Parameter = None
    V: Parameter = None
    alpha: Parameter = None
    G: Parameter = None
    beta: Parameter = None

    exchangeable = _PAIR

    def _network(self) -> Network:
        maxwell = joined((Power(self.V, self.alpha), Power(self.G, self.beta)))
        return added((Power(self.eta, 1), maxwell))


@dataclass(frozen=True)
class Maxwell(Material):
    """A dashpot and a spring in series: G(t) = G exp(-G t / eta).

    Attributes:
        eta: Viscosity, in Pa s.
        G: Modulus, in Pa.

    Examples:
        >>> Maxwell(eta=2, G=1).relaxation([2.0]).round(6)
        array([0.367879])
    """

    eta: Parameter = None
    G: Parameter = None

    def _network(self) -> Network:
        return joined((Power(self.eta, 1), Power(self.G, 0)))


@dataclass(frozen=True)
class KelvinVoigt(Material):
    """A dashpot and a spring in parallel: J(t) = (1 - exp(-G t / eta)) / G.

    Attributes:
        eta: Viscosity, in Pa s.
        G: Modulus, in Pa.

    Examples:
        >>> KelvinVoigt(eta=2, G=1).creep([2.0]).round(6)
        array([0.632121])
    """

    eta: Parameter = None
    G: Parameter = None

    def _network(self) -> Network:
        return added((Power(self.eta, 1), Power(self.G, 0)))


@dataclass(frozen=True)
class Zener(Material):
    """The standard linear solid: a spring beside a Maxwell model, G(t) = K + G exp(-G t / eta).

    Attributes:
        K: Modulus after a long time, in Pa.
        eta: Viscosity, in Pa s.
        G: Modulus of the spring in series, in Pa.

    Examples:
        >>> Zener(K=1, eta=2, G=1).relaxation([2.0]).round(6)
        array([1.367879])
    """

    K: Parameter = None
    eta: Parameter = None
    G: Parameter = None

    def _network(self) -> Network:
        return added((Power(self.K, 0), joined((Power(self.eta, 1), Power(self.G, 0)))))


@dataclass(frozen=True)
class PoyntingThomson(Material):
    """A spring in series with a Kelvin-Voigt model: J(t) = 1 / K + (1 - exp(-G t / eta)) / G.

    Attributes:
        K: Modulus at once, in Pa.
        eta: Viscosity, in Pa s.
        G: Modulus of the spring in parallel, in Pa.

    Examples:
        >>> PoyntingThomson(K=1, eta=2, G=1).creep([2.0]).round(6)
        array([1.632121])
    """

    K: Parameter = None
    eta: Parameter = None
    G: Parameter = None

    def _network(self) -> Network:
        return joined((Power(self.K, 0), added((Power(self.eta, 1), Power(self.G, 0)))))


@dataclass(frozen=True)
class Jeffreys(Material):
    """A dashpot beside a Maxwell model.

    Attributes:
        eta: Viscosity of the dashpot, in Pa s.
        eta_m: Viscosity of the one in the Maxwell model, in Pa s.
        G: Modulus of the spring, in Pa.

    Examples:
        >>> Jeffreys(eta=1, eta_m=2, G=1).complex_modulus(0.5).round(6)
        np.complex128(0.5+1j)
    """

    eta: Parameter = None
    eta_m: Parameter = None
    G: Parameter = None

    def _network(self) -> Network:
        return added((Power(self.eta, 1), joined((Power(self.eta_m, 1), Power(self.G, 0)))))


@dataclass(frozen=True)
class MaxwellMode(Material):
    """A Maxwell model by its relaxation time: G(t) = G exp(-t / tau).

    Attributes:
        G: Modulus, in Pa.
        tau: Relaxation time, in s.

    Examples:
        >>> MaxwellMode(G=1, tau=2).relaxation([2.0]).round(6)
        array([0.367879])
    """

    G: Parameter = None
    tau: Parameter = None

    def _network(self) -> Network:
        return joined((Power(self.G, 1, self.tau), Power(self.G, 0)))


def prony(modes: int | Sequence[tuple[Parameter, Parameter]], *, equilibrium: Parameter = None) -> Material:
    """Return a Prony series, the generalised Maxwell model: G(t) = K + sum_i G_i exp(-t / tau_i).

    Args:
        modes: (G_i, tau_i) of each mode, or the number of modes with unknown parameters.
        equilibrium: K, the modulus of a spring beside the modes; None is unknown and has the name K, 0 is a fluid.

    Raises:
        ValueError: There is no mode.

    Examples:
        >>> prony([(2, 1), (1, 10)], equilibrium=0.5).relaxation([1.0]).round(6)
        array([2.140596])
        >>> prony(2).unknowns
        ('K', 'G_1', 'tau_1', 'G_2', 'tau_2')
    """
    pairs = [(None, None)] * modes if isinstance(modes, int) else list(modes)
    if not pairs:
        raise ValueError(f"prony(modes={modes!r}): needs at least one mode; pass their number, or pairs (G, tau).")
    parts: list[Any] = [] if equilibrium == 0 else [Spring("K" if equilibrium is None else equilibrium)]
    return reduce(or_, [*parts, *(MaxwellMode(*each) for each in pairs)])  # type: ignore[no-any-return]


MATERIALS: dict[str, type[Material]] = {
    "spring": Spring,
    "dashpot": Dashpot,
    "spring_pot": SpringPot,
    "maxwell": Maxwell,
    "kelvin_voigt": KelvinVoigt,
    "zener": Zener,
    "poynting_thomson": PoyntingThomson,
    "jeffreys": Jeffreys,
    "maxwell_mode": MaxwellMode,
    "fractional_maxwell": FractionalMaxwell,
    "fractional_kelvin_voigt": FractionalKelvinVoigt,
    "fractional_zener": FractionalZener,
    "fractional_poynting_thomson": FractionalPoyntingThomson,
    "fractional_jeffreys": FractionalJeffreys,
}
