"""Experiments: the measured data, the scale on which they are fitted, and what a model predicts for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.models.networks import Network, Tangents, Values, inverse, on_axis, response_tangents, tangents

Predicted = tuple[np.ndarray, Tangents]  # values [parts, n], and a function: their derivatives by parameter, by name


class Kind(NamedTuple):
    """A kind of experiment: which quantities are measured, at what, and how a network predicts them.

    Attributes:
        name: Name of the kind.
        x: Name of what the quantities are measured at: "t", a time, or "omega", an angular frequency.
        parts: Names of the measured quantities, one or two.
        domain: "rheology" or "impedance": the models that predict them.
        predict: A function of (network, x, values) that returns the predictions and their derivatives.
        is_complex: Whether the two parts are those of a complex number of either sign, scaled by its modulus.
    """

    name: str
    x: str
    parts: tuple[str, ...]
    domain: str
    predict: Callable[[Network, np.ndarray, Values], Predicted]
    is_complex: bool = False

    @property
    def is_in_time(self) -> bool:
        """Whether the quantities are measured at times; then the last points say most about what follows."""
        return self.x == "t"


def _relaxation(network: Network, x: np.ndarray, values: Values) -> Predicted:
    value, slopes = response_tangents(network, x, 1, values)
    return value[None], lambda: {name: slope[None] for name, slope in slopes().items()}


def _creep(network: Network, x: np.ndarray, values: Values) -> Predicted:
    return _relaxation(inverse(network), x, values)


def _harmonic(network: Network, x: np.ndarray, values: Values) -> Predicted:
    value, slopes = tangents(network, on_axis(x, NUMPY), values)
    return _parts(value), lambda: {name: _parts(slope) for name, slope in slopes().items()}


def _parts(value: np.ndarray) -> np.ndarray:
    return np.stack([value.real, value.imag])


KINDS = {
    each.name: each
    for each in (
        Kind("relaxation", "t", ("G",), "rheology", _relaxation),
        Kind("creep", "t", ("J",), "rheology", _creep),
        Kind("oscillation", "omega", ("G'", "G''"), "rheology", _harmonic),
        Kind("impedance", "omega", ("Z'", "Z''"), "impedance", _harmonic, is_complex=True),
    )
}


class MissingPart(ValueError):
    """A model whose response lacks a part of the data was to be fitted on logarithms.

    Examples:
        >>> from hpfracc_nn.models import fit
        >>> from hpfracc_nn.models.rheology import Spring
        >>> sweep = Experiment.oscillation([1.0, 2.0], [3.0, 3.0], [0.1, 0.2])
        >>> try:
        ...     fit(Spring, sweep)  # it has no loss
        ... except MissingPart:
        ...     print("no G''")
        no G''
    """


@dataclass(frozen=True, eq=False)
class Experiment:
    """What was measured, made by `relaxation`, `creep`, `oscillation` or `impedance`.

    Each of these takes one of two statements about the noise, or none:

    - `noise`, its relative standard deviation, such as 0.03. Positive data are then fitted on logarithms, an impedance
      relative to its modulus.
    - `deviation`, standard deviations in the units of the data, a single one or one for each value. Data are then
      fitted as they are, and may have any sign.
    - With neither, data are fitted as with `noise`, whose size is estimated: the same in all experiments of a fit.

    Measurements with a masked entry, in NumPy's masked arrays, are left out.

    Attributes:
        kind: Kind of the experiment, a name in `KINDS`.
        x: Times or angular frequencies, [n], increasing.
        observed: Measured values, [parts, n]; one part, or two: storage and loss, or real and imaginary part.
        deviation: Standard deviations, [parts, n], or None.
        noise: Relative standard deviation, or None.
        name: Name in tables and plots.

    Examples:
        >>> step = Experiment.relaxation([0.1, 1.0, 10.0], [3.0, 1.0, 0.4], noise=0.03)
        >>> len(step), step.is_stated
        (3, True)
    """

    kind: str
    x: np.ndarray
    observed: np.ndarray
    deviation: np.ndarray | None = None
    noise: float | None = None
    name: str = field(default="")

    @classmethod
    def relaxation(
        cls, t: Any, modulus: Any, *, deviation: Any = None, noise: float | None = None, name: str = ""
    ) -> Experiment:
        """Return the experiment of a step of strain: relaxation moduli G, stress over strain, at times t after it.

        Raises:
            ValueError: Times do not increase from above 0, there are fewer than two, a modulus is not finite, or it is
                not positive and there is no `deviation`.

        Examples:
            >>> Experiment.relaxation([1.0, 2.0], [3.0, 2.0]).kind
            'relaxation'
        """
        return cls._checked("relaxation", t, (modulus,), deviation, noise, name)

    @classmethod
    def creep(
        cls, t: Any, compliance: Any, *, deviation: Any = None, noise: float | None = None, name: str = ""
    ) -> Experiment:
        """Return the experiment of a step of stress: creep compliances J, strain over stress, at times t after it.

        Raises:
            ValueError: As in `relaxation`.

        Examples:
            >>> Experiment.creep([1.0, 2.0], [3.0, 4.0]).kind
            'creep'
        """
        return cls._checked("creep", t, (compliance,), deviation, noise, name)

    @classmethod
    def oscillation(
        cls,
        omega: Any,
        storage: Any,
        loss: Any = None,
        *,
        deviation: Any = None,
        noise: float | None = None,
        name: str = "",
    ) -> Experiment:
        """Return a frequency sweep: storage and loss moduli at angular frequencies omega, in rad per unit of time.

        Without `loss`, `storage` is the complex modulus, of which they are the real and the imaginary part.

        Raises:
            ValueError: As in `relaxation`; or there is no loss, and `storage` is real.

        Examples:
            >>> Experiment.oscillation([1.0, 2.0], [3.0, 4.0], [1.0, 1.2]).observed.shape
            (2, 2)
            >>> Experiment.oscillation([1.0, 2.0], [3.0 + 1.0j, 4.0 + 1.2j]).observed[1].tolist()
            [1.0, 1.2]
        """
        if loss is None:
            modulus, (storage, loss) = storage, _complex_parts("oscillation", "G*", storage)
            if not np.iscomplexobj(modulus):
                raise ValueError(
                    "Experiment.oscillation(storage without loss): needs both moduli; pass loss, or the complex "
                    "modulus G' + i G'' in place of storage."
                )
        return cls._checked("oscillation", omega, (storage, loss), deviation, noise, name)

    @classmethod
    def impedance(
        cls, omega: Any, impedance: Any, *, deviation: Any = None, noise: float | None = None, name: str = ""
    ) -> Experiment:
        """Return a spectrum: complex impedances at angular frequencies omega = 2 pi f.

        Raises:
            ValueError: As in `relaxation`, but for the signs.

        Examples:
            >>> Experiment.impedance([1.0, 2.0], [3.0 - 1j, 2.0 - 0.5j]).observed.shape
            (2, 2)
        """
        return cls._checked("impedance", omega, _complex_parts("impedance", "Z", impedance), deviation, noise, name)

    @classmethod
    def _checked(
        cls, kind: str, x: Any, observed: tuple[Any, ...], deviation: Any, noise: float | None, name: str
    ) -> Experiment:
        of = KINDS[kind]
        x, observed, deviation = _unmasked(x, observed, deviation)
        points = _row(kind, of.x, x)
        values = [_row(kind, part, each) for part, each in zip(of.parts, observed, strict=True)]
        order = np.argsort(points, kind="stable") if not of.is_in_time else np.arange(points.size)
        _check_points(kind, of.x, points[order])  # sweeps of frequency may run downwards, times may not
        for part, each in zip(of.parts, values, strict=True):
            if each.shape != points.shape:
                raise ValueError(
                    f"Experiment.{kind}({of.x} of {points.size} numbers, {part} of {each.size}): needs a value for "
                    f"each {of.x}; pass as many."
                )
        if noise is not None and deviation is not None:
            raise ValueError(f"Experiment.{kind}(noise={noise!r}, deviation=...): needs one of the two; leave one out.")
        if noise is not None:
            noise = errors.real(f"Experiment.{kind}", "noise", noise, 0.0, above=True, example=0.03)
        data = np.stack(values)[:, order]
        spread = None if deviation is None else _spread(kind, deviation, data.shape, order)
        if spread is None:
            _check_positive(of, points[order], data)
        return cls(kind, points[order], data, spread, noise, name or kind)

    def __len__(self) -> int:
        """Return how many times or frequencies there are."""
        return self.x.size

    @property
    def is_stated(self) -> bool:
        """Whether the noise is stated."""
        return self.deviation is not None or self.noise is not None

    @property
    def is_on_logarithms(self) -> bool:
        """Whether the data are fitted on logarithms."""
        return self.deviation is None and not KINDS[self.kind].is_complex

    def target(self) -> np.ndarray:
        """Return the numbers that are fitted, [parts n]: the data or their logarithms, in units of a stated noise."""
        return ((np.log(self.observed) if self.is_on_logarithms else self.observed) / self._unit).ravel()

    def predictions(self, network: Network, values: Values) -> tuple[np.ndarray, Callable[[Sequence[str]], np.ndarray]]:
        """Return the predictions of `target`, and a function that computes their derivatives.

        The function takes names of parameters, and returns the derivatives by these, [parts n, names]. Predictions are
        [parts n].
        """
        found, slopes = KINDS[self.kind].predict(network, self.x, values)

        def jacobian(names: Sequence[str]) -> np.ndarray:
            by_name, columns = slopes(), np.zeros((len(names), *found.shape))
            for column, name in zip(columns, names, strict=True):
                column += by_name.get(name, 0.0)
            unit = self._unit * found if self.is_on_logarithms else self._unit
            return (columns / unit).reshape(len(names), found.size).T

        return ((np.log(found) if self.is_on_logarithms else found) / self._unit).ravel(), jacobian

    def check_parts(self, network: Network, values: Values) -> None:
        """Raise MissingPart where data are fitted on logarithms and a part of the predictions is always 0.

        Args:
            network: The network that predicts.
            values: Values of its parameters, with orders strictly between 0 and 1: at 0 and 1 more parts may be 0.
        """
        if not self.is_on_logarithms:
            return
        of = KINDS[self.kind]  # an exponential that is too small at the times of the data is not at early ones
        here, early = (of.predict(network, self.x * scale, values)[0].any(axis=1) for scale in (1.0, 1e-100))
        for place in np.flatnonzero(~(here | early))[:1]:
            raise MissingPart(
                f"Experiment.{self.kind}: needs a model that has {' and '.join(of.parts)} for a fit on logarithms; of "
                f"the model {of.parts[place]} is 0 at all {of.x}; pass deviation=, the standard deviation of the data, "
                "for a fit without logarithms, or take another model."
            )

    @property
    def _unit(self) -> Any:
        """What residuals are divided by: a number, or [parts, n]."""
        if self.deviation is not None:
            return self.deviation
        noise = 1.0 if self.noise is None else self.noise
        return noise * np.hypot(*self.observed) if KINDS[self.kind].is_complex else noise

    def log_units(self) -> float:
        """Return the sum of the logarithms of what residuals are divided by, for the likelihood."""
        return float(np.log(np.broadcast_to(self._unit, self.observed.shape)).sum())

    def part(self, chosen: np.ndarray) -> Experiment:
        """Return the experiment with only the points that the mask `chosen`, [n], selects."""
        spread = None if self.deviation is None else self.deviation[:, chosen]
        return replace(self, x=self.x[chosen], observed=self.observed[:, chosen], deviation=spread)

    def is_late(self, decades: float) -> np.ndarray:
        """Return which points lie in the last decades of time, or of 1 / omega; bool, [n]."""
        factor = 10.0**decades
        return self.x > self.x[-1] / factor if KINDS[self.kind].is_in_time else self.x < self.x[0] * factor

    @property
    def middle(self) -> tuple[float, float]:
        """The middle time (or 1 / omega) on a logarithmic scale, and the typical size of the network F there.

        F is a modulus or an impedance: for creep its size is 1 over that of the data.
        """
        logs = np.log(self.x)
        time = float(np.exp((1 if KINDS[self.kind].is_in_time else -1) * (logs[0] + logs[-1]) / 2))
        size = float(np.median(np.hypot(*self.observed) if len(self.observed) == 2 else np.abs(self.observed[0])))
        return time, 1 / size if self.kind == "creep" else size

    @property
    def times(self) -> tuple[float, float]:
        """The least and the largest time, or 1 / omega."""
        ends = self.x[0], self.x[-1]
        return ends if KINDS[self.kind].is_in_time else (1 / ends[1], 1 / ends[0])


def _unmasked(x: Any, observed: tuple[Any, ...], deviation: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the arguments of an experiment without the measurements where one of the arrays is masked."""
    masks = [np.ma.getmaskarray(each) for each in (x, *observed, deviation) if np.ma.isMaskedArray(each)]
    if not any(mask.any() for mask in masks):
        return x, observed, deviation
    try:
        kept = ~np.any([np.broadcast_to(mask, (len(observed), len(x))).any(axis=0) for mask in masks], axis=0)
    except ValueError:
        return x, observed, deviation  # shapes that do not fit are refused by the caller

    def cut(values: Any) -> Any:
        found = np.ma.getdata(values)
        return found[..., kept] if found.ndim and found.shape[-1] == kept.size else values

    return cut(x), tuple(cut(each) for each in observed), None if deviation is None else cut(deviation)


def _complex_parts(kind: str, name: str, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the real and the imaginary part of measured complex numbers; masked arrays stay masked."""
    _check_detached(kind, name, given)
    values = np.ma.asanyarray(given) if np.ma.isMaskedArray(given) else np.asarray(given)
    return values.real, values.imag


def _check_detached(kind: str, name: str, values: Any) -> None:
    if getattr(values, "requires_grad", False):
        raise ValueError(
            f"Experiment.{kind}({name} that requires a gradient): needs data, of which a fit has no gradient; pass "
            f"{name}.detach()."
        )


def _row(kind: str, name: str, values: Any) -> np.ndarray:
    _check_detached(kind, name, values)
    found = errors.as_numbers(values)
    if found is None:
        raise ValueError(f"Experiment.{kind}({name}): needs real numbers; pass one for each measurement.")
    if found.ndim != 1:
        raise ValueError(
            f"Experiment.{kind}({name} of shape {found.shape}): needs one axis; pass one number for each measurement."
        )
    for place in np.flatnonzero(~np.isfinite(found))[:1]:
        raise ValueError(
            f"Experiment.{kind}({name}[{place}]={found[place]}): needs finite numbers; leave that measurement out."
        )
    return found


def _check_points(kind: str, name: str, x: np.ndarray) -> None:
    if x.size < 2:
        raise ValueError(
            f"Experiment.{kind}({name} of {x.size} numbers): needs at least two; measure at more, over some decades."
        )
    if not x[0] > 0:
        raise ValueError(
            f"Experiment.{kind}({name}): needs {name} > 0; {name}[0]={x[0]:g}; leave it out, or count from the step on."
        )
    for place in np.flatnonzero(np.diff(x) <= 0)[:1]:
        way = "sort them, and pass repeated runs as experiments of their own"
        raise ValueError(
            f"Experiment.{kind}({name}): needs {name} to increase; {name}[{place + 1}]={x[place + 1]:g} follows "
            f"{name}[{place}]={x[place]:g}; {way}."
        )


def _check_positive(of: Kind, x: np.ndarray, data: np.ndarray) -> None:
    if of.is_complex:
        for place in np.flatnonzero(~data.any(axis=0))[:1]:
            raise ValueError(
                f"Experiment.{of.name}: needs data other than 0, since residuals are relative to the modulus, 0 at "
                f"{of.x}={x[place]:g}; leave it out, or pass deviation=, the standard deviation of the data."
            )
        return
    for part, place in np.argwhere(data <= 0)[:1]:
        raise ValueError(
            f"Experiment.{of.name}: needs positive data for a fit on logarithms; "
            f"{of.parts[part]}={data[part, place]:g} at {of.x}={x[place]:g}; leave it out, or pass deviation=, the "
            "standard deviation of the data, for a fit without logarithms."
        )


def _spread(kind: str, deviation: Any, shape: tuple[int, ...], order: np.ndarray) -> np.ndarray:
    found = errors.as_numbers(deviation)
    if found is None or not np.all((found > 0) & np.isfinite(found)):
        raise ValueError(
            f"Experiment.{kind}(deviation): needs positive standard deviations; pass one, or one for each."
        )
    try:
        return np.broadcast_to(found, shape)[:, order]
    except ValueError:
        raise ValueError(
            f"Experiment.{kind}(deviation of shape {found.shape}): needs one number, or the shape of the data, {shape}."
        ) from None
