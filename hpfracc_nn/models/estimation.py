"""Fits of models to experiments: least squares from several starts, and what the data say about each parameter.

A point is a vector [parameters] of coordinates: the logarithm of a positive parameter, an order itself. Residuals are
in units of the noise, see `experiments.Experiment`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from hpfracc_nn import errors
from hpfracc_nn.layers.estimates import LeastSquares
from hpfracc_nn.models.experiments import KINDS, Experiment
from hpfracc_nn.models.impedance import has_turned_sign
from hpfracc_nn.models.model import Model
from hpfracc_nn.models.networks import ORDER, Network
from hpfracc_nn.training.fit import NEAR, Minimum, least_squares, scale_of

_OWNER = "fit"
_FAR = 30.0  # distance of a positive parameter's bounds from what the data suggest, in logarithms: 13 decades
_DRAWN, _WIDER = 60, 1.0  # first points that are compared for each fit, and decades beyond the data in which they lie
_TRIED, _SEARCH = 4, 8  # of these points four times as many as are followed are searched from, for so many steps
_MOST_LEAVES = 64  # times drawn for the leaves of a network; further leaves use them again
_FIRST = 1e-2  # damping of the first step
_ROUNDS, _TOLERANCE = 100, 1e-6  # a step of a thousandth of a standard error is the last
_LOOSE = 1e-7  # over the largest singular value of the scaled Jacobian: up to it a direction is weak, left open by data
_MARGIN = 10.0  # how large a weak direction's part in a prediction is before it counts, see `Directions.spread`
_SHARE = 0.1  # over the largest entry of a weak direction: a larger entry is a parameter that the direction moves
_VAGUE, _VAGUE_ORDER = 3.0, 0.5  # standard errors of a logarithm and of an order that say nothing: a factor of 20
_AT_BOUND = 1e-6  # distance of a coordinate from a bound, up to which it is at the bound
_TINY = 1e-300  # in place of an exact fit's sum of squares, 0
_ROUNDING = 1e-9  # standard deviation of residuals up to which data count as free of noise
_WORSE, _RARE = 1.2, 1e-3  # residuals by that much above the stated noise, and less probable than that, are a misfit
_ALIKE = 4.0  # standard deviations of the correlation of neighbouring residuals, where they have a trend
_PROFILE_STEPS, _PROFILE_TOLERANCE = 25, 1e-3  # chords for one end of a profile interval, and the error over its width


class Problem:
    """The least-squares problem of fitting a network to experiments.

    A point is a vector [parameters] of coordinates: logarithms of positive parameters, and orders themselves.

    Args:
        network: A network with the names of the parameters in its fields.
        roles: Whether each parameter is "positive" or an "order", by name.
        experiments: The experiments that are fitted.
    """

    def __init__(self, network: Network, roles: Mapping[str, str], experiments: Sequence[Experiment]):
        self.network, self.experiments = network, experiments
        self.names = tuple(roles)
        self.is_order = np.array([role == ORDER for role in roles.values()], dtype=bool)
        self.target = np.concatenate([each.target() for each in experiments])

    def values(self, point: np.ndarray) -> np.ndarray:
        """Return the values of the parameters at a point."""
        return np.exp(point, where=~self.is_order, out=np.array(point, dtype=float))

    def point(self, values: np.ndarray) -> np.ndarray:
        """Return the point that stands for `values` of the parameters."""
        return np.log(values, where=~self.is_order, out=np.array(values, dtype=float))

    def __call__(self, point: np.ndarray) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        """Return the predictions [observations], and a function that computes their Jacobian.

        The Jacobian, [observations, parameters], holds derivatives by the coordinates.
        """
        values = self.values(point)
        named = dict(zip(self.names, values.tolist(), strict=True))
        found = [each.predictions(self.network, named) for each in self.experiments]

        def jacobian() -> np.ndarray:
            steepness = np.where(self.is_order, 1.0, values)
            return np.concatenate([by(self.names) for _, by in found]) * steepness

        return np.concatenate([predicted for predicted, _ in found]), jacobian

    def steepness(self, point: np.ndarray) -> np.ndarray:
        """Return the derivative of each parameter's value by its coordinate, [parameters]."""
        return np.where(self.is_order, 1.0, self.values(point))

    def squares(self, point: np.ndarray) -> float:
        """Return the sum of squared residuals at a point; infinite where predictions are not finite."""
        residuals = self.target - self(point)[0]
        return float(residuals @ residuals) if np.isfinite(residuals).all() else np.inf

    def minimum(self, start: np.ndarray, bounds: np.ndarray, damping: float = _FIRST, rounds: int = _ROUNDS) -> Minimum:
        """Return the minimum that damped Gauss-Newton steps reach from `start`, or the point after `rounds` steps.

        Where predictions at the start are not finite, the start itself is returned, with infinite residuals.
        """
        begin = np.clip(start, *bounds)
        with np.errstate(all="ignore"):  # what is not finite is no way down
            predicted, jacobian = self(begin)
            slopes = jacobian()
            if not (np.isfinite(predicted).all() and np.isfinite(slopes).all()):
                return Minimum(begin, np.full(self.target.size, np.inf), np.zeros(slopes.shape), 0)
            return least_squares(
                lambda point: (predicted, lambda: slopes) if point is begin else self(point),
                self.target,
                begin,
                tolerance=_TOLERANCE,
                iterations=rounds,
                damping=damping,
                bounds=(bounds[0], bounds[1]),
                owner=_OWNER,
                is_search=True,
            )

    def size(self, point: np.ndarray) -> float:
        """Return the factor by which the network F is too small for the data, as a geometric mean."""
        ratios = []
        for each in self.experiments:
            predicted, _ = KINDS[each.kind].predict(self.network, each.x, self._named(point))
            ratio = np.log(np.abs(each.observed) / np.abs(predicted)) * (-1 if each.kind == "creep" else 1)
            ratios.append(ratio[np.isfinite(ratio)].mean() if np.isfinite(ratio).any() else 0.0)
        return float(np.exp(np.clip(np.mean(ratios), -_FAR, _FAR)))

    def _named(self, point: np.ndarray) -> dict[str, float]:
        return dict(zip(self.names, self.values(point).tolist(), strict=True))


class Directions(NamedTuple):
    """What data say about each direction in the space of the coordinates, from the singular values of the Jacobian.

    Attributes:
        scale: How much each coordinate changes the predictions, [parameters].
        sizes: How much each direction changes the predictions, with coordinates in units of 1 / `scale`; [directions].
        vectors: The directions in these units, [directions, parameters].
        variance: Variance of the residuals; 1 where the noise is stated.
    """

    scale: np.ndarray
    sizes: np.ndarray
    vectors: np.ndarray
    variance: float

    @classmethod
    def of(cls, jacobian: np.ndarray, variance: float) -> Directions:
        """Return the directions of a Jacobian of the predictions by the coordinates, [observations, parameters]."""
        scale = scale_of(jacobian)
        _, sizes, vectors = np.linalg.svd(jacobian / scale, full_matrices=False)
        return cls(scale, sizes, vectors, variance)

    @property
    def is_weak(self) -> np.ndarray:
        """Which directions the data do not determine, bool [directions]."""
        return self.sizes <= _LOOSE * self.sizes[0]

    def covariance(self, is_order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariance of the coordinates, and a mask [parameters] of those that the data do not determine.

        Rows and columns of these are NaN. `is_order` is the mask of the coordinates that are orders.
        """
        weak = self.is_weak
        parts = np.abs(self.vectors[weak])
        loose = (parts > _SHARE * parts.max(axis=1, initial=0.0, keepdims=True)).any(axis=0)
        half = self.vectors[~weak].T / self.sizes[~weak] / self.scale[:, None]
        covariance = self.variance * half @ half.T
        loose |= np.sqrt(np.diag(covariance)) > np.where(is_order, _VAGUE_ORDER, _VAGUE)
        covariance[loose], covariance[:, loose] = np.nan, np.nan
        return covariance, loose

    def spread(self, slopes: np.ndarray) -> np.ndarray:
        """Return the standard errors of predictions with derivatives `slopes` by the coordinates, [..., parameters].

        They are infinite where a weak direction takes part: where its error, if it were just strong enough not to be
        weak, would be ten times that of all other directions. The predictions that were fitted pass: what a weak
        direction changes in them is as small as its singular value.
        """
        parts = slopes / self.scale @ self.vectors.T
        weak = self.is_weak
        known = np.linalg.norm(parts[..., ~weak] / self.sizes[~weak], axis=-1)
        unknown = np.linalg.norm(parts[..., weak], axis=-1)
        is_open = unknown > _MARGIN * _LOOSE * self.sizes[0] * known
        return np.where(is_open, np.inf, np.sqrt(self.variance) * known)


class Prediction(NamedTuple):
    """What a fitted model predicts, with a confidence band.

    Attributes:
        x: Times or angular frequencies, [n].
        value: Predictions, [n]; complex for "oscillation" and "impedance".
        low: The lower end of the band, of real and imaginary part where the value is complex.
        high: The upper end. Where the value depends on what the data do not determine, the ends are 0 and infinity, or
            minus and plus infinity for values of either sign.

    Examples:
        >>> one = Prediction(np.ones(1), np.array([2.0]), np.array([1.9]), np.array([2.1]))
        >>> bool((one.low <= one.value).all())
        True
    """

    x: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, eq=False)
class ModelFit(LeastSquares):
    """A fitted model, and how well the data determine it.

    Attributes:
        names: Names of the parameters.
        values: Estimates of the parameters, [parameters].
        covariance: Covariance of the estimates, [parameters, parameters]; NaN for those that the data do not determine.
        deviation: Standard deviation of the residuals: relative, or about 1 where the noise is stated.
        observations: How many numbers were fitted.
        model: The model with the estimates as its parameters, of the class that was passed.
        fitted: The model that was passed, whose parameters are unknown.
        experiments: The experiments that were fitted.
        squares: Sum of squares of the residuals.
        starts: From how many first points the model was fitted, and how many of these led to this minimum.
        level: Probability of the confidence intervals.
        notes: Warnings about the estimates, such as a parameter that the data do not determine.
        point: The estimates' coordinates, [parameters].
        bounds: Bounds of the coordinates, [2, parameters].
        is_given: Which of the bounds are the caller's, [2, parameters]; the others are those of orders, or far away.
        directions: What the data say about the coordinates jointly, even where they do not determine each of them.

    Source: Seber & Wild, Nonlinear Regression (1989), chapters 2 and 5; Bates & Watts, Nonlinear Regression Analysis
    (1988), chapter 6, for profiles; Burnham & Anderson, Model Selection (2002), for AIC and BIC.

    Examples:
        >>> from hpfracc_nn.models.rheology import SpringPot
        >>> t = np.geomspace(0.01, 100, 40)
        >>> noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(40))
        >>> found = fit(SpringPot, Experiment.relaxation(t, 5 * t**-0.3 * noise))
        >>> low, high = found.profile_intervals(0.9)["alpha"]
        >>> low < found.estimates["alpha"] < high
        True
        >>> band = found.predict("creep", [1.0, 1000.0])
        >>> bool((band.low < band.value).all() and (band.value < band.high).all())
        True
        >>> found.extrapolation(decades=1) < 0.05  # of the last decade, relative
        True
    """

    model: Any
    fitted: Model
    experiments: tuple[Experiment, ...]
    squares: float
    starts: tuple[int, int]
    level: float
    notes: tuple[str, ...]
    point: np.ndarray
    bounds: np.ndarray
    is_given: np.ndarray
    directions: Directions

    @cached_property
    def _problem(self) -> Problem:
        return Problem(self.fitted.network, self.fitted.roles, self.experiments)

    @property
    def is_stated(self) -> bool:
        """Whether the noise is stated."""
        return self.experiments[0].is_stated

    @property
    def freedom(self) -> int:
        """Observations less parameters."""
        return self.observations - len(self.names)

    @property
    def residuals(self) -> tuple[np.ndarray, ...]:
        """The residuals of each experiment, [parts, n]: in units of the stated noise, else relative.

        Relative ones are logarithms of ratios, and of an impedance parts of its modulus.
        """
        found = []
        for each in self.experiments:
            predicted, _ = each.predictions(self._problem.network, self.estimates)
            found.append((each.target() - predicted).reshape(each.observed.shape))
        return tuple(found)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The confidence intervals by name: `profile_intervals` at the fit's level."""
        return self.profile_intervals()

    @property
    def log_likelihood(self) -> float:
        """The logarithm of the likelihood of normal residuals, at its maximum."""
        n = self.observations
        if self.is_stated:
            return -0.5 * (self.squares + n * np.log(2 * np.pi)) - sum(each.log_units() for each in self.experiments)
        units = sum(each.log_units() for each in self.experiments)
        return -0.5 * n * (np.log(2 * np.pi * max(self.squares, _TINY) / n) + 1) - units

    @property
    def aic(self) -> float:
        """Akaike's information criterion: less is better, among models of the same data and noise.

        It is 2 k - 2 `log_likelihood`. k is the number of estimated parameters, and one more where the noise is not
        stated.
        """
        return 2 * self._counted - 2 * self.log_likelihood

    @property
    def bic(self) -> float:
        """The Bayesian information criterion: less is better, among models of the same data and noise.

        It is k log(`observations`) - 2 `log_likelihood`, with k as in `aic`.
        """
        return float(np.log(self.observations)) * self._counted - 2 * self.log_likelihood

    @property
    def _counted(self) -> int:
        return len(self.names) + (not self.is_stated)

    def half_width(self, level: float) -> float:
        """Return half of an interval's width at `level`, in standard errors."""
        of = stats.norm if self.is_stated else stats.t(self.freedom)
        return float(of.ppf((1 + level) / 2))

    def profile_intervals(self, level: float | None = None) -> dict[str, tuple[float, float]]:
        """Return confidence intervals by name, from the least sum of squares for each fixed value of a parameter.

        An interval ends where the F test (of a stated noise, the chi-squared test) against the estimate is at `level`,
        or at a bound. Without a bound an end that the data do not determine is 0 or infinite. Each end takes a few
        fits.

        Args:
            level: Probability of the intervals, between 0 and 1; None is that of the fit.
        """
        level = self.level if level is None else errors.probability("profile_intervals", "level", level, example=0.95)
        key = f"_profile_{level!r}"
        if key not in self.__dict__:
            width = self.half_width(level)
            found = {name: self._profile(place, width) for place, name in enumerate(self.names)}
            self.__dict__[key] = found  # a cache beside the fields, which are frozen
        return dict(self.__dict__[key])

    def _profile(self, place: int, width: float) -> tuple[float, float]:
        ends = [self._end(place, side * width) for side in (-1.0, 1.0)]
        if self._problem.is_order[place]:
            return ends[0], ends[1]
        low, high = (float(np.exp(end)) for end in ends)
        is_far = (np.array(ends) == self.bounds[:, place]) & ~self.is_given[:, place]
        return (0.0 if is_far[0] else low), (np.inf if is_far[1] else high)

    def _end(self, place: int, target: float) -> float:
        """Return the value of coordinate `place` at an end of its profile interval: where `_root` returns `target`.

        The root is nearly linear in the coordinate, so that a few chords find the end: outwards until the root is
        beyond `target`, then between two coordinates (Illinois), because the least sum of squares may have bends.
        """
        limit, centre = self.bounds[int(target > 0), place], self.point[place]
        spread = self._coordinate_errors[place]
        inner, inner_gap, start = centre, -target, self.point
        outer: float | None = None
        outer_gap = 0.0
        step = target * (spread if np.isfinite(spread) else 1.0)
        here = centre + step
        if here == centre:  # a step below rounding, as of an exact fit
            return float(centre)
        for _ in range(_PROFILE_STEPS):
            here = min(here, limit) if target > 0 else max(here, limit)
            point, root = self._root(place, here, start, target)
            gap = root - target
            if abs(gap) <= _PROFILE_TOLERANCE * abs(target):
                return float(here)
            if abs(root) < abs(target):
                if here == limit:
                    break
                outer_gap *= 0.5 if outer is not None and inner != centre else 1.0
                risen = abs(inner_gap) - abs(gap)
                left = abs(gap) / risen if risen > 0 else np.inf  # steps such as this one; of a flat profile any number
                inner, inner_gap, step, start = here, gap, here - inner, point
            else:
                inner_gap *= 0.5 if outer is not None else 1.0
                outer, outer_gap = here, gap
            if outer is None:
                here += step * min(max(left, 0.5), 4.0)
            elif np.isfinite(outer_gap):
                here = (inner * outer_gap - outer * inner_gap) / (outer_gap - inner_gap)
            else:
                here = 0.5 * (inner + outer)
        return float(limit if outer is None else here)

    def _root(self, place: int, coordinate: float, start: np.ndarray, target: float) -> tuple[np.ndarray, float]:
        """Return the best point with one coordinate fixed, and the signed root there.

        It is the square root of the excess over the least sum of squares, in units of the variance, with the sign of
        `target`: the distance from the estimate in standard errors.
        """
        point, squares = self._with(place, coordinate, start)
        variance = 1.0 if self.is_stated else max(self.squares, _TINY) / self.freedom
        return point, float(np.copysign(np.sqrt(max(squares - self.squares, 0.0) / variance), target))

    def _with(self, place: int, coordinate: float, start: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the point with the least sum of squares, coordinate `place` being fixed, and this sum of squares."""
        begin = start.copy()
        begin[place] = coordinate
        bounds = self.bounds.copy()
        bounds[:, place] = coordinate
        found = self._problem.minimum(begin, bounds, NEAR)
        return found.point, float(found.residuals @ found.residuals)

    @cached_property
    def _coordinate_errors(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance)) / self._problem.steepness(self.point)

    def predict(self, kind: str, x: Any, *, level: float | None = None) -> Prediction:
        """Return what the model predicts of an experiment, with the confidence band of the curve.

        Args:
            kind: "relaxation", "creep", "oscillation" or "impedance".
            x: Times, or angular frequencies, increasing; [n].
            level: Probability of the band; None is that of the fit.

        Raises:
            ValueError: The model has no such experiment, `x` is not positive, or `level` is not between 0 and 1.
        """
        of = KINDS[errors.one_of("predict", "kind", kind, KINDS)]
        _check_domain("predict", self.fitted, of.domain, kind)
        points = np.atleast_1d(np.asarray(x, dtype=float))
        if not (points > 0).all():
            raise ValueError(f"predict({of.x}): needs {of.x} > 0; got {points.min():g}; leave it out.")
        value, by_name = of.predict(self._problem.network, points, self.estimates)
        slopes = by_name()
        zero = np.zeros_like(value)
        columns = np.stack([slopes.get(name, zero) for name in self.names], axis=-1)
        level = self.level if level is None else errors.probability("predict", "level", level, example=0.95)
        half = self.half_width(level)
        spread = half * self.directions.spread(columns * self._problem.steepness(self.point))
        if of.is_complex or (value <= 0).any():
            low, high = value - spread, value + spread
        else:
            with np.errstate(over="ignore"):
                low, high = value * np.exp(-spread / value), value * np.exp(spread / value)
        return Prediction(points, *(_joined(each) for each in (value, low, high)))

    def extrapolation(self, decades: float = 1.0) -> float:
        """Return the root mean square residual over the last decades, for a fit that has not seen them.

        The last decades are those of the largest times, or of the lowest frequencies. The result is in the residuals'
        units: relative where data are fitted on logarithms and the noise is not stated.

        Args:
            decades: How many decades are hidden, in every experiment that is long enough.

        Raises:
            ValueError: No more numbers than parameters are left.
        """
        decades = errors.real("extrapolation", "decades", decades, 0.0, above=True)
        late = [each.is_late(decades) for each in self.experiments]
        early = [each.part(~chosen) for each, chosen in zip(self.experiments, late, strict=True) if (~chosen).any()]
        left = sum(each.observed.size for each in early)
        if left <= len(self.names):
            raise ValueError(
                f"extrapolation(decades={decades:g}): needs more than {len(self.names)} numbers before the hidden "
                f"decades; {left} are left; hide fewer."
            )
        problem = Problem(self._problem.network, self.fitted.roles, early)
        point = problem.minimum(self.point, self.bounds).point
        values = dict(zip(self.names, problem.values(point).tolist(), strict=True))
        missed = []
        for each, chosen in zip(self.experiments, late, strict=True):
            predicted, _ = each.predictions(self._problem.network, values)
            missed.append((each.target() - predicted).reshape(each.observed.shape)[:, chosen].ravel())
        return float(np.sqrt(np.mean(np.concatenate(missed) ** 2)))

    def summary(self) -> str:
        """Return a table of the estimates with profile intervals, and what to think of them."""
        lines = self.table(self.level, self.intervals)
        of = "times the stated noise" if self.is_stated else "residual deviation"
        lines.append(
            f"{self.deviation:.3g} {of} over {self.observations} numbers; AIC {self.aic:.1f}, BIC {self.bic:.1f}"
        )
        lines += self.notes
        return "\n".join(lines)

    def plot(self) -> Any:
        """Return a matplotlib figure: data, model, its band, and residuals."""
        from hpfracc_nn.models.figures import draw_fit

        return draw_fit(self)


def _joined(parts: np.ndarray) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    found = np.empty(parts[0].shape, dtype=complex)
    found.real, found.imag = parts  # 1j times infinity has a real part that is NaN
    return found


def fit(
    model: Model | type[Model],
    data: Experiment | Sequence[Experiment],
    *,
    start: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    starts: int = 4,
    level: float = 0.95,
) -> ModelFit:
    """Return the parameters of a model that fit experiments best, in least squares.

    Parameters of the model that have no value are estimated, jointly from all experiments; those that have one keep it.
    First points are drawn from what the data suggest, the best of them are followed, and the best minimum is returned.
    A fit is the same each time.

    Args:
        model: A model, such as `FractionalMaxwell(beta=0)`, or its class, of which every parameter is unknown.
        data: One experiment or several.
        start: First values of some parameters by name, for one more start.
        bounds: Least and largest values of some parameters by name. Without bounds an order stays in [0, 1], and any
            other parameter is positive.
        starts: How many first points are followed.
        level: Probability of the confidence intervals.

    Raises:
        TypeError: `model` is not a model, or `data` are not experiments.
        ValueError: The model has no unknown parameter or no such experiment, there are too few data, or an argument is
            out of range.
        RuntimeError: No first point has finite predictions.

    Warns:
        UserWarning: What `notes` say: a parameter that the data do not determine, or that is at its bound, residuals
            that are far above the stated noise, or have a trend, and an impedance whose imaginary part has the other
            sign.

    Source: Marquardt, J. SIAM 11 (1963) 431.

    Examples:
        >>> from hpfracc_nn.models.rheology import SpringPot
        >>> t = np.geomspace(0.01, 100, 40)
        >>> noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(40))
        >>> measured = SpringPot(V=5, alpha=0.3).relaxation(t) * noise
        >>> found = fit(SpringPot, Experiment.relaxation(t, measured))
        >>> print(found.summary())
                   estimate    std. error  95 % interval
        V           4.98...
        alpha      0.29...
        0.01... residual deviation over 40 numbers; AIC ..., BIC ...
    """
    chosen, experiments = _checked(model, data)
    roles = chosen.roles
    count = errors.count(_OWNER, "starts", starts)
    level = errors.probability(_OWNER, "level", level, example=0.95)
    problem = Problem(chosen.network, roles, experiments)
    limits, is_given = _limits(problem, experiments, bounds or {})
    first = _first_points(problem, experiments, limits, start or {}, count)
    best, reached = _best(problem, first, limits, chosen.label)
    best = _exchanged(chosen, problem, best, limits)
    squares = float(best.residuals @ best.residuals)
    freedom = problem.target.size - len(problem.names)
    is_stated = experiments[0].is_stated
    variance = squares / freedom
    directions = Directions.of(best.jacobian, 1.0 if is_stated else variance)
    covariance, loose = directions.covariance(problem.is_order)
    steepness = problem.steepness(best.point)
    values = problem.values(best.point)
    notes = (*_signs(chosen, experiments), *_notes(problem, best, limits, is_given, loose, values))
    for note in notes:
        warnings.warn(f"{_OWNER}: {note}", UserWarning, stacklevel=2)
    return ModelFit(
        problem.names,
        values,
        covariance * np.outer(steepness, steepness),
        float(np.sqrt(variance)),
        problem.target.size,
        chosen.at(**dict(zip(problem.names, values.tolist(), strict=True))),
        chosen,
        experiments,
        squares,
        (len(first), reached),
        level,
        notes,
        best.point,
        limits,
        is_given,
        directions,
    )


def _checked(model: Any, data: Any) -> tuple[Model, tuple[Experiment, ...]]:
    chosen = model() if isinstance(model, type) and issubclass(model, Model) else model
    if not isinstance(chosen, Model):
        raise TypeError(
            f"{_OWNER}(model={model!r}): needs a model; pass such as rheology.FractionalMaxwell, or parse(name)."
        )
    experiments = (data,) if isinstance(data, Experiment) else tuple(data) if isinstance(data, list | tuple) else ()
    if not experiments or not all(isinstance(each, Experiment) for each in experiments):
        raise TypeError(
            f"{_OWNER}(data of type {type(data).__name__}): needs experiments; pass Experiment.relaxation(t, modulus), "
            "or a list of experiments."
        )
    for each in experiments:
        _check_domain(_OWNER, chosen, KINDS[each.kind].domain, each.kind)
    if len({each.is_stated for each in experiments}) > 1:
        raise ValueError(
            f"{_OWNER}(data): needs the noise of all experiments, or of none; pass noise= or deviation= to each."
        )
    for field, value in chosen._slots():
        if value is not None and not isinstance(value, str) and errors.as_float(value) is None:
            raise TypeError(
                f"{_OWNER}({field} of type {type(value).__name__}): needs a number for a parameter that has a value, "
                f"since one model is fitted; pass float({field}), or None to estimate it."
            )
    roles = chosen.roles
    if not roles:
        raise ValueError(
            f"{_OWNER}(model={chosen!r}): needs an unknown parameter; leave out, or pass as None, what is estimated."
        )
    count = sum(each.observed.size for each in experiments)
    if count <= len(roles):
        raise ValueError(
            f"{_OWNER}(data of {count} numbers): needs more than the {len(roles)} parameters {', '.join(roles)}; "
            "measure more, or give some of them values."
        )
    return chosen.named(), experiments


def _check_domain(owner: str, model: Model, domain: str, kind: str) -> None:
    if model.domain != domain:
        raise ValueError(
            f"{owner}({kind!r} of {type(model).__name__}): needs a model of {domain}; take one from "
            f"hpfracc_nn.models.{domain}."
        )


def _limits(
    problem: Problem, experiments: Sequence[Experiment], bounds: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the coordinates, (least, largest), and which are from `bounds`, bool; [2, parameters] each.

    Raises:
        ValueError: `bounds` has another name than those of the parameters, or numbers out of range; or a part of the
            predictions is always 0 (MissingPart).
    """
    time, size = _middle(experiments)
    typical: dict[str, float] = {
        name: 0.5 for name, is_order in zip(problem.names, problem.is_order, strict=True) if is_order
    }
    problem.network.guess(size, lambda: time, typical)
    for each in experiments:
        with np.errstate(all="ignore"):
            each.check_parts(problem.network, typical)
    centre = problem.point(np.array([typical[name] for name in problem.names]))
    limits = np.where(problem.is_order, [[0.0], [1.0]], centre + _FAR * np.array([[-1.0], [1.0]]))
    is_given = np.zeros(limits.shape, dtype=bool)
    for name, pair in bounds.items():
        if name not in problem.names:
            raise ValueError(
                f"{_OWNER}(bounds of {name!r}): needs the name of an unknown parameter: {', '.join(problem.names)}."
            )
        low, high = errors.pair(_OWNER, f"bounds[{name!r}]", pair)
        place = problem.names.index(name)
        is_order = problem.is_order[place]
        if not (0 <= low < high and (high <= 1 or not is_order) and (low > 0 or is_order)):
            rule = "0 <= low < high <= 1" if is_order else "0 < low < high"
            raise ValueError(f"{_OWNER}(bounds[{name!r}]={pair}): needs {rule}; pass such a pair.")
        limits[:, place] = (low, high) if is_order else np.log([low, high])
        is_given[:, place] = True
    return limits, is_given


def _middle(experiments: Sequence[Experiment]) -> tuple[float, float]:
    found = np.log([each.middle for each in experiments]).mean(axis=0)
    return float(np.exp(found[0])), float(np.exp(found[1]))


def _first_points(
    problem: Problem,
    experiments: Sequence[Experiment],
    limits: np.ndarray,
    start: Mapping[str, float],
    count: int,
) -> list[np.ndarray]:
    """Return the points from which to search: the one with the values `start`, if any, and the `count` best drawn ones.

    In a drawn point every element of the network is about as large as the measured values, at a random time of its own.
    """
    rng = np.random.default_rng(0)
    ends = np.log(np.array([each.times for each in experiments]))
    wider = _WIDER * np.log(10)
    span = ends.min() - wider, ends.max() + wider
    _, size = _middle(experiments)
    drawn = []
    for _ in range(_DRAWN):
        orders = {
            name: float(rng.uniform())
            for name, is_order in zip(problem.names, problem.is_order, strict=True)
            if is_order
        }
        times = np.exp(rng.uniform(*span, size=_MOST_LEAVES)).tolist()

        def point_of(size: float, orders: dict[str, float] = orders, times: list[float] = times) -> np.ndarray:
            values, clock = dict(orders), cycle(times)
            problem.network.guess(size, lambda: next(clock), values)
            return np.clip(problem.point(np.array([values[name] for name in problem.names])), *limits)

        with np.errstate(all="ignore"):
            point = point_of(size * problem.size(point_of(size)))
            drawn.append((problem.squares(point), point))
    usable = sorted((each for each in drawn if np.isfinite(each[0])), key=lambda each: each[0])
    searched = [problem.minimum(point, limits, rounds=_SEARCH) for _, point in usable[: _TRIED * count]]
    searched.sort(key=lambda each: float(each.residuals @ each.residuals))
    points = [each.point for each in searched[:count] if np.isfinite(each.residuals).all()]
    if start:
        for name, value in start.items():
            _check_start(problem, name, value)
        base = dict(
            zip(problem.names, problem.values(points[0]) if points else [1.0] * len(problem.names), strict=True)
        )
        points.insert(
            0, np.clip(problem.point(np.array([(base | dict(start))[name] for name in problem.names])), *limits)
        )
    return points


def _check_start(problem: Problem, name: str, value: Any) -> None:
    if name not in problem.names:
        raise ValueError(
            f"{_OWNER}(start of {name!r}): needs the name of an unknown parameter: {', '.join(problem.names)}."
        )
    number = errors.as_float(value)
    is_order = problem.is_order[problem.names.index(name)]
    if number is None or not (0 <= number <= 1 if is_order else 0 < number < np.inf):
        rule = "a number from 0 to 1" if is_order else "a finite number > 0"
        raise ValueError(f"{_OWNER}(start[{name!r}]={value!r}): needs {rule}; pass a first value such as 0.5.")


def _best(problem: Problem, first: Sequence[np.ndarray], limits: np.ndarray, label: str) -> tuple[Minimum, int]:
    """Return the best minimum, and from how many of the first points it was reached; `label` is for messages."""
    found = [problem.minimum(point, limits) for point in first]
    sums = np.array([each.residuals @ each.residuals for each in found])
    least = sums.min(initial=np.inf)
    if not np.isfinite(least):
        raise RuntimeError(
            f"{_OWNER}({label}): no first point has finite predictions; a response that is 0, such as the loss of a "
            "spring, has no logarithm: pass deviation= with the data, or first values by start=."
        )
    return found[int(sums.argmin())], int((sums <= least * (1 + 1e-6) + 1e-20 * problem.target.size).sum())


def _exchanged(model: Model, problem: Problem, best: Minimum, limits: np.ndarray) -> Minimum:
    """Return the minimum with the two spring-pots of a pair exchanged where the first has the smaller order.

    The predictions stay as they are. The minimum is returned unchanged where the bounds forbid the exchange.
    """
    places = [problem.names.index(name) for name in model.exchangeable if name in problem.names]
    if len(places) != 4 or best.point[places[1]] >= best.point[places[3]]:
        return best
    order = np.arange(len(problem.names))
    order[places] = [places[2], places[3], places[0], places[1]]
    point = best.point[order]
    if (point < limits[0]).any() or (point > limits[1]).any():
        return best
    return replace(best, point=point, jacobian=best.jacobian[:, order])


def _signs(model: Model, experiments: Sequence[Experiment]) -> tuple[str, ...]:
    return tuple(
        f"most imaginary parts of the {each.name} are positive, which no circuit without an inductor has; many "
        "instruments write -Z'': pass np.conj(Z)."
        for each in experiments
        if each.kind == "impedance" and has_turned_sign(model, each)
    )


def _notes(
    problem: Problem,
    best: Minimum,
    limits: np.ndarray,
    is_given: np.ndarray,
    loose: np.ndarray,
    values: np.ndarray,
) -> tuple[str, ...]:
    """Return warnings about estimates: at a bound, not determined, a misfit, or residuals with a trend."""
    notes = []
    for place, name in enumerate(problem.names):
        is_at = np.abs(limits[:, place] - best.point[place]) <= _AT_BOUND
        if (is_at & (is_given[:, place] | problem.is_order[place])).any():
            notes.append(
                f"{name} is at its bound {values[place]:g}: its standard error is that of a model without bounds."
            )
        elif is_at.any() or loose[place]:
            notes.append(f"the data do not determine {name}: give it a value, or measure what depends on it.")
    squares = float(best.residuals @ best.residuals)
    freedom = best.residuals.size - len(problem.names)
    ratio = np.sqrt(squares / freedom)
    if problem.experiments[0].is_stated and ratio > _WORSE and stats.chi2.sf(squares, freedom) < _RARE:
        notes.append(
            f"the residuals are {ratio:.2g} times the stated noise: the model does not describe the data, and neither "
            "standard errors nor intervals hold."
        )
    elif ratio > _ROUNDING and (share := _correlation(problem, best.residuals)) > _ALIKE:
        notes.append(
            f"neighbouring residuals are alike ({share:.1f} standard deviations of their correlation): the model "
            "misses a trend, and standard errors are too small."
        )
    return tuple(notes)


def _correlation(problem: Problem, residuals: np.ndarray) -> float:
    """Return the correlation of neighbouring residuals, over its standard deviation if they were independent."""
    begin, total, squares, pairs = 0, 0.0, 0.0, 0
    for each in problem.experiments:
        here = residuals[begin : begin + each.observed.size].reshape(each.observed.shape)
        begin += each.observed.size
        total += float((here[:, 1:] * here[:, :-1]).sum())
        squares += float((here * here).sum())
        pairs += here[:, 1:].size
    return total / squares * np.sqrt(pairs) if squares else 0.0
