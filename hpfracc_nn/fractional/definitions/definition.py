"""The base class of definitions: reading and checking of orders, and properties derived from them.

An order is a number, nested sequences of numbers, or a framework's tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from inspect import get_annotations
from typing import Any, ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.dispatch import apply, backend, framework_of, shape_of
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes import SCHEMES, Scheme
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.selection import BackendManager


def read_fixed(owner: str, alpha: Any) -> float | tuple[Any, ...] | None:
    """Return alpha as a float or nested tuple of floats, or None when it is a framework's tensor."""
    number = errors.as_float(alpha)
    if number is not None:
        return number
    if isinstance(alpha, Sequence | np.ndarray) and not isinstance(alpha, str | bytes):
        plain = _plain(alpha)
        if plain is not None:
            return plain
        try:
            values = np.asarray(alpha)
        except ValueError:  # lists of different lengths
            values = np.empty(0)
        if values.dtype.kind not in "fiu" or values.size == 0:
            raise TypeError(
                f"{owner}(alpha={alpha!r}): needs real numbers, one per channel; pass for example alpha=[0.3, 0.7]."
            )
        return _nested(values.astype(np.float64).tolist())
    if hasattr(alpha, "shape") and hasattr(alpha, "dtype") and not isinstance(alpha, np.generic):
        if framework_of(type(alpha)) == "jax":
            backend("jax")  # which registers definitions as pytrees, before the first transform meets one
        return None
    raise TypeError(
        f"{owner}(alpha={alpha!r}): needs a real number, a sequence of them or a tensor; pass for example alpha=0.5."
    )


def _plain(values: Any) -> Any:
    """Return a float for a number, nested tuples of floats for lists nested like an array's rows; else None.

    It is tried before `numpy.asarray` because torch.compile can trace this function.
    """
    if type(values) in (float, int):
        return float(values)
    if type(values) not in (list, tuple) or not values:
        return None
    parts = tuple([_plain(value) for value in values])
    if any(part is None or shape_of(part) != shape_of(parts[0]) for part in parts):
        return None
    return parts


def flat(values: Any) -> tuple[float, ...]:
    """Return the numbers of nested tuples, one after the other."""
    if not isinstance(values, tuple):
        return (values,)
    return tuple([number for value in values for number in flat(value)])


def _nested(values: Any) -> Any:
    return tuple(_nested(v) for v in values) if isinstance(values, list) else values


Alpha = Any  # a float, a nested sequence or NumPy array of floats, or a tensor of a framework

SIDES = ("left", "right", "both")

_COMMON = ("alpha", "scheme", "bounds", "side")
WIDEST = 1.25  # m minus the lowest order, up to which float32 keeps its digits


@dataclass(frozen=True, eq=False)
class Definition:
    """A fractional operator as a value: its order, its scheme, and nothing about how it runs.

    Called with samples it is applied to them, as `derivative` does; what comes back has the units of x / time**alpha
    where the class says nothing else.

    Attributes:
        alpha: The order. A float or one value per channel, [*c] (then it broadcasts over the data's axes other than
            time); or a framework's tensor; its values are read only where no gradient is wanted.
        scheme: The discretisation, one of `schemes`.
        bounds: Where a tensor alpha may lie; (0, 1) if None. It decides how often the data are differenced, and may
            contain no whole number in its interior where a Taylor polynomial is subtracted. An alpha on the lower
            bound is the limit from above. Where a tensor alpha learns, nothing checks that it is within the bounds;
            outside of them its weights are wrong, or NaN.
        side: From where memory reaches to a sample: "left", from the first sample on; "right", from the last one
            back, as in reversed time; "both", the mean of the two.

    Raises:
        TypeError: `alpha` is no real number, no numbers and no tensor, or `bounds` is no pair of numbers.
        ValueError: An order is out of the class's range, or outside the bounds; orders lie on both sides of 1 where a
            Taylor polynomial is subtracted; `scheme` or `side` is not known, or the bounds are no such interval.

    Examples:
        >>> half = Caputo(0.5)  # a value, equal to every other of the same order and scheme
        >>> half == Caputo(0.5, "l1_2"), half.accuracy(0.5)
        (True, 2.5)
        >>> # an order for each of two channels
        >>> Caputo([0.3, 0.7])(np.zeros((8, 2, 100)), dt=0.01).shape
        (8, 2, 100)
    """

    alpha: Alpha
    scheme: str = ""  # each definition has its own default
    bounds: tuple[float, float] | None = None
    side: str = field(default="left", kw_only=True)

    lowest: ClassVar[float] = 0.0
    highest: ClassVar[float] = 2.0
    schemes: ClassVar[tuple[str, ...]] = ()
    subtracts: ClassVar[bool] = True
    # The way out when alpha is too large. Order 1 of the operator itself would not do, which begins with 0, a jump;
    # neither would `np.gradient`, whose error jumps at both ends: differentiated again, it does not fall with dt.
    beyond: ClassVar[str] = (
        "take the samples' own derivative first, such as scipy.interpolate.CubicSpline(t, x, axis=-1)(t, 1), "
        "then alpha={rest} of it."
    )
    dt_power: ClassVar[float] = -1.0  # weights are those for dt = 1 times dt**(dt_power alpha)
    own_fields: ClassVar[tuple[str, ...]] = ()  # names of the options that a class adds to the fields of all
    is_tabulated: ClassVar[bool] = True  # whether weights are analytic in alpha a little beyond any bounds

    def __init_subclass__(cls) -> None:
        if "_left" in vars(cls):
            raise TypeError(f"{cls.__name__}._left: needs the name _weights; rename the method.")
        declared = get_annotations(cls).items()
        added = [name for name, kind in declared if "ClassVar" not in str(kind) and name not in _COMMON]
        cls.own_fields = (*cls.own_fields, *[name for name in added if name not in cls.own_fields])

    def __hash__(self) -> int:
        """Return the hash of all fields."""
        return hash(self.key)

    @cached_property
    def key(self) -> frozenset[Any]:
        """The class and all fields as a key of caches: a frozenset keeps its hash, which a tuple computes each time."""
        return frozenset((type(self), self._values))

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._values == other._values)

    @property
    def _values(self) -> tuple[Any, ...]:
        """All fields, computed once; definitions of a class are equal if these are."""
        found = self.__dict__.get("_kept_values")
        if found is None:
            found = (self.alpha, self.scheme, self.bounds, self.side, *self.options)
            object.__setattr__(self, "_kept_values", found)
        return found

    @property
    def options(self) -> tuple[Any, ...]:
        """The fields that a subclass adds, numbers and strings, in their order."""
        return tuple([getattr(self, name) for name in self.own_fields])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without computed properties: hashes differ between processes."""
        return {name: value for name, value in self.__dict__.items() if name not in ("key", "_kept_values")}

    def __post_init__(self) -> None:
        errors.one_of(self._name, "scheme", self.scheme, self.schemes)
        errors.one_of(self._name, "side", self.side, SIDES)
        fixed = read_fixed(self._name, self.alpha)
        if fixed is not None:
            object.__setattr__(self, "alpha", fixed)
            for value in self.orders:
                self._check_range(value)
        if self.bounds is not None:
            object.__setattr__(self, "bounds", self._read_bounds(self.bounds))
        if fixed is not None and self.subtracts and self.bounds is None:
            intervals = {self._taylor(value) for value in self.orders}
            if len(intervals) > 1:
                raise ValueError(
                    f"{self._name}(alpha={fixed}): needs all orders on one side of 1; apply the operator once per side."
                )

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def is_fixed(self) -> bool:
        """Whether alpha is a number or numbers, and not a framework's tensor."""
        return isinstance(self.alpha, float | tuple)

    @property
    def orders(self) -> tuple[float, ...]:
        """The numbers of a fixed alpha, one after the other."""
        return flat(self.alpha)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of alpha: its bounds, or its smallest and largest value; (0, 1) for a tensor without bounds."""
        if self.bounds is not None:
            return self.bounds
        if self.is_fixed:
            return min(self.orders), max(self.orders)
        return 0.0, 1.0

    @property
    def taylor(self) -> int:
        """Terms of the Taylor polynomial at the first sample: 1, or 2 above alpha = 1."""
        return self._taylor(self.interval[1])

    @property
    def looks_ahead(self) -> bool:
        """Whether results depend on later samples.

        They do with side "right" or "both", and where a Taylor polynomial with x'(0) is subtracted (above alpha = 1),
        which is estimated from the first four samples.
        """
        return self.side != "left" or (self.subtracts and self.taylor == 2)

    @property
    def differences(self) -> int:
        """m, the backward differences taken before the product: max(0, ceil(alpha - 1/4)) of the upper bound.

        The number m changes the rounding and nothing else. Bounds of (0, 1) give 1 for every alpha within them.
        """
        return max(0, math.ceil(self.interval[1] - 0.25))

    @property
    def is_wide(self) -> bool:
        """Whether to compute in float64: orders far below the upper bound are differenced too often for float32.

        What m differences take away the weights must add up again: rounding grows like n**(m - alpha - 1/2).
        """
        return self.differences - self.interval[0] > WIDEST

    @property
    def approximated(self) -> Definition | None:
        """The definition whose weights sums of exponentials approximate; None where none may."""
        return self

    @property
    def is_plain(self) -> bool:
        """Whether all fields but order, scheme and bounds have their defaults, as some formulas require."""
        return self == type(self)(self.alpha, self.scheme, self.bounds)

    def at(self, alpha: float) -> Definition:
        """Return the operator with the number `alpha` as its order and the same bounds."""
        low, high = self.interval
        return replace(self, alpha=alpha, bounds=self.bounds or ((low, high) if low < high else None))

    def __call__(
        self, x: Any, *, dt: float = 1.0, t: Any = None, dim: int = -1, manager: BackendManager | None = None
    ) -> Any:
        """Return the operator applied to `x` along `dim`; see `fractional.derivative`."""
        return apply(self._name, x, self, dt, dim, manager, t)

    def stencil(self, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the operator on `n` samples at spacing `dt`, in float64 arrays of `xp`.

        Args:
            n: Number of samples, at least 0.
            dt: Spacing, in the caller's time unit; positive.
            xp: The namespace that alpha belongs to.
            differences: m, in place of `self.differences`.
        """
        return self.stencil_at(xp.asarray(self.alpha), n, dt, xp, differences)

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil for orders `alpha`, float64 [*c], with this definition's differences and Taylor terms.

        The orders are not checked: within the interval, or close to it, the weights are analytic in them. A column is
        evaluated when it is first read. Other arguments as in `stencil`.
        """
        m = self.differences if differences is None else differences
        taylor, terms, own = self.taylor, self.terms if n else 0, self.in_steps(dt)
        start_index = self._start_index

        def scale() -> Array:
            return xp.exp(self.dt_power * alpha * math.log(dt))[..., None]

        return Stencil(
            n=n,
            side=self.side,
            column=lambda lags: own._weights(alpha, m, lags, xp) * scale(),
            differences=m,
            subtract=self.subtracts,
            taylor=taylor if self.subtracts else 1,
            start_column=(lambda rows: own._start(alpha, m, rows, xp) * scale()) if n and start_index else None,
            start_index=start_index or 1,
            analytic_columns=(lambda rows: own._analytic(alpha, rows, xp) * scale()[..., None]) if terms else None,
            terms=terms,
        )

    @property
    def to_the_left(self) -> Definition:
        """The operator with side "left", from which the other sides are computed."""
        return self if self.side == "left" else replace(self, side="left")

    def in_steps(self, dt: float) -> Definition:
        """Return the operator with the step as the unit of time.

        The weights of this definition for `dt` are those of the returned one for dt = 1, times dt**(dt_power alpha). An
        operator without a time scale of its own is the same in every unit, and returned itself.
        """
        return self

    @property
    def fading(self) -> float:
        """Rate of exponential tempering of a power-law memory, per step."""
        return 0.0

    @property
    def fades(self) -> bool:
        """Whether weights may decay exponentially, so that their tail is negligible."""
        return self.fading > 0

    @property
    def own_rates(self) -> tuple[float, ...]:
        """The decay rate of each order, per step, where its weights are one exponential for dt = 1; else empty."""
        return ()

    def accuracy(self, alpha: float) -> float:
        """Return the order of convergence on smooth data, at a fixed time."""
        return self._scheme.rate(alpha)

    def uniform_accuracy(self, alpha: float) -> float:
        """Return the order of convergence of the largest error of all samples but the first.

        Where no Taylor polynomial is subtracted, that is for data which are zero at the first sample. If the order of
        convergence is not positive, the largest error does not fall with dt.
        """
        return self._scheme.uniform_rate(alpha, self.subtracts)

    @property
    def _scheme(self) -> Scheme:
        return SCHEMES[self.scheme]

    @property
    def _start_index(self) -> int | None:
        """Index of the entry of d, the differenced samples, that the starting column multiplies, or None."""
        found = self._scheme.start_index
        return found(self.taylor) if self.subtracts and found is not None else None

    @property
    def terms(self) -> int:
        """Number of analytic columns: those of x(0) and dt x'(0)."""
        return 0

    # The columns for dt = 1, [*c, k] at the given lags or rows.

    def _weights(self, alpha: Array, m: int, lags: np.ndarray, xp: Namespace) -> Array:
        return self._scheme.weights(alpha, self.taylor, m, lags, xp)

    def _start(self, alpha: Array, m: int, rows: np.ndarray, xp: Namespace) -> Array:
        assert self._scheme.start is not None, "only a scheme with a starting column is asked for it"
        return self._scheme.start(alpha, self.taylor, m, rows, xp)

    def _analytic(self, alpha: Array, rows: np.ndarray, xp: Namespace) -> Array:
        """Return the columns that multiply x(0) and, if `terms` is 2, dt x'(0) in the result, at its samples `rows`.

        They are [*c, terms, k] for orders alpha [*c], numbers of samples `rows` [k] and dt = 1.
        """
        return taylor_columns(alpha, self.terms, rows, xp)

    def _taylor(self, alpha: float) -> int:
        return max(1, math.ceil(alpha))

    def _check_range(self, alpha: float) -> None:
        if not -math.inf < alpha < math.inf:
            raise ValueError(
                f"{self._name}(alpha={alpha}): needs a finite alpha; pass {self.lowest:g} <= alpha <= {self.highest:g}."
            )
        if alpha < self.lowest:
            raise ValueError(
                f"{self._name}(alpha={alpha:g}): needs {self.lowest:g} <= alpha <= {self.highest:g}; "
                f"{self._below(alpha)}"
            )
        if alpha > self.highest:
            out = self.beyond.format(rest=f"{alpha - 1:g}")
            raise ValueError(
                f"{self._name}(alpha={alpha:g}): needs {self.lowest:g} <= alpha <= {self.highest:g}; {out}"
            )

    def _below(self, alpha: float) -> str:
        return f"for an integral of order {-alpha:g} use RiemannLiouvilleIntegral({-alpha:g})."

    def _read_bounds(self, bounds: Any) -> tuple[float, float]:
        low, high = errors.pair(self._name, "bounds", bounds)
        if not low < high:
            raise ValueError(f"{self._name}(bounds=({low:g}, {high:g})): needs low < high; pass a pair such as (0, 1).")
        if not (self.lowest <= low and high <= self.highest):
            raise ValueError(
                f"{self._name}(bounds=({low:g}, {high:g})): needs bounds within [{self.lowest:g}, {self.highest:g}]; "
                "pass a pair such as (0, 1)."
            )
        if self.subtracts and low < self._taylor(high) - 1:
            raise ValueError(
                f"{self._name}(bounds=({low:g}, {high:g})): needs no whole number between the bounds, where the "
                f"operator jumps; pass ({self._taylor(high) - 1:g}, {high:g})."
            )
        if self.is_fixed and not all(low <= order <= high for order in self.orders):
            raise ValueError(
                f"{self._name}(alpha={self.alpha}, bounds=({low:g}, {high:g})): needs alpha within its bounds; "
                "widen the bounds."
            )
        return low, high


def family(definition: Definition) -> Definition:
    """Return the same operator with its upper bound as a fixed alpha, and its bounds.

    The weights of a tensor alpha depend on that operator and on alpha's values only.
    """
    kind = type(definition)
    return _family(kind, definition.scheme, definition.interval, definition.options)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _family(kind: type[Definition], scheme: str, interval: tuple[float, float], own: tuple[Any, ...]) -> Definition:
    options: dict[str, Any] = dict(zip(kind.own_fields, own, strict=True))
    return kind(interval[1], scheme, interval, **options)


def taylor_columns(alpha: Array, terms: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return k**(j - alpha) / Gamma(j + 1 - alpha), j < terms, at the given rows k: shape [*c, terms, k].

    At k = 0 the first column is 1 and the second 0. 1 / Gamma(1 - alpha) is written as
    (1 - alpha)(2 - alpha) / Gamma(3 - alpha), which is finite and has the right sign on [0, 2].
    """
    alpha = alpha[..., None]
    first = int((rows < 1).sum())  # 1 if row 0 is among them
    log_k = xp.constant(np.log(rows[first:].astype(np.float64)), alpha)
    reciprocal = xp.exp(-xp.gammaln(3 - alpha)) * (2 - alpha)
    columns = [xp.concat([0 * alpha + 1] * first + [(1 - alpha) * reciprocal * xp.exp(-alpha * log_k)], axis=-1)]
    if terms == 2:
        columns.append(xp.concat([0 * alpha] * first + [reciprocal * xp.exp((1 - alpha) * log_k)], axis=-1))
    return xp.stack(columns, axis=-2)


def check_definition(owner: str, definition: Any) -> None:
    """Raise TypeError unless the argument is a Definition; `owner` is named in the message."""
    if not isinstance(definition, Definition):
        given = repr(definition) if not isinstance(definition, type) else definition.__name__
        raise TypeError(
            f"{owner}(definition={given}): needs a definition with its alpha; pass for example Caputo(0.5)."
        )
