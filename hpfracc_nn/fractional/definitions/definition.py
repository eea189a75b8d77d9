"""What every definition shares: how alpha is read and checked, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes import SCHEMES, Scheme
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.selection import BackendManager

Alpha = Any  # a float, a nested sequence or NumPy array of floats, or a tensor of a framework

WIDEST = 1.25  # m minus the lowest order, up to which float32 keeps its digits


@dataclass(frozen=True)
class Definition:
    """A fractional operator as a value: its order, its scheme, and nothing about how it runs.

    Attributes:
        alpha: The order. A float or one value per channel (then it broadcasts over the data's axes other than time);
            or a framework's tensor; its values are read only where no gradient is wanted.
        scheme: The discretisation, one of `schemes`.
        bounds: Where a tensor alpha may lie; (0, 1) if None. It decides how often the data are differenced, and may
            contain no whole number in its interior where a Taylor polynomial is subtracted. An alpha on the lower
            bound is the limit from above. A tensor alpha outside them is not
            checked where it learns; its weights are then wrong, or NaN.
    """

    alpha: Alpha
    scheme: str = ""  # each definition has its own default
    bounds: tuple[float, float] | None = None

    lowest: ClassVar[float] = 0.0
    highest: ClassVar[float] = 2.0
    schemes: ClassVar[tuple[str, ...]] = ()
    subtracts: ClassVar[bool] = True
    beyond: ClassVar[str] = ""  # the way out when alpha is too large

    def __hash__(self) -> int:
        """Return the hash of what makes definitions equal, kept: every call looks for its plan by its definition."""
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash((type(self), self.alpha, self.scheme, self.bounds))
            object.__setattr__(self, "_hash", found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the hash, which is another one in another process."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def __post_init__(self) -> None:
        errors.one_of(self._name, "scheme", self.scheme, self.schemes)
        fixed = _read_fixed(self._name, self.alpha)
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
        return _flat(self.alpha)

    @property
    def interval(self) -> tuple[float, float]:
        """Where alpha lies: its bounds, or its own smallest and largest value."""
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
    def differences(self) -> int:
        """m, the backward differences taken before the product: max(0, ceil(alpha - 1/4)) of the upper bound.

        It changes the rounding, and beside that only bdf2 near the start: its starting column multiplies another entry.
        A bound of (0, 1) gives 1 for every alpha in it.
        """
        return max(0, math.ceil(self.interval[1] - 0.25))

    @property
    def is_wide(self) -> bool:
        """Whether orders far below the upper bound are differenced so often that float32 would lose their digits.

        What m differences take away the weights must add up again: rounding grows like n**(m - alpha - 1/2).
        """
        return self.differences - self.interval[0] > WIDEST

    @property
    def approximated(self) -> Definition | None:
        """What sums of exponentials have to come close to, to stand for the weights; None where they never may."""
        return self

    @property
    def is_plain(self) -> bool:
        """Whether the order, the scheme and the bounds are all there is: formulas may know no other option."""
        return self == type(self)(self.alpha, self.scheme, self.bounds)

    def at(self, alpha: float) -> Definition:
        """The same operator with the number `alpha` in place of its order, the same bounds kept."""
        low, high = self.interval
        return replace(self, alpha=alpha, bounds=self.bounds or ((low, high) if low < high else None))

    def __call__(
        self, x: Any, *, dt: float = 1.0, t: Any = None, dim: int = -1, manager: BackendManager | None = None
    ) -> Any:
        """Return the operator applied to `x` along `dim`; see `fractional.derivative`."""
        from hpfracc_nn.fractional import (
            operator,  # it knows the definitions: at the top this would be a cycle
        )

        return operator.apply(self._name, x, self, dt, dim, manager, t)

    def stencil(self, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the operator on `n` samples at spacing `dt`, in float64 arrays of `xp`.

        Args:
            n: Number of samples, at least 0.
            dt: Spacing, in the caller's time unit; positive.
            xp: The namespace that alpha belongs to.
            differences: m, if it shall not be what the rule says.
        """
        return self.stencil_at(xp.asarray(self.alpha), n, dt, xp, differences)

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil of other orders, float64 of shape [*c], in this definition's differences and terms.

        They are not checked: within the interval, or close to it, the weights are analytic in them. Nothing is
        evaluated before it is asked for. Other arguments as in `stencil`.
        """
        m = self.differences if differences is None else differences
        scheme: Scheme = SCHEMES[self.scheme]
        taylor, start, terms = self.taylor, scheme.start if self.subtracts and n else None, self._terms if n else 0

        def scale() -> Array:
            return xp.exp(self.dt_power * alpha * math.log(dt))[..., None]

        return Stencil(
            n=n,
            column=lambda lags: scheme.left(alpha, taylor, m, lags, xp) * scale(),
            differences=m,
            subtract=self.subtracts,
            taylor=taylor if self.subtracts else 1,
            start_column=None if start is None else lambda rows: start(alpha, taylor, m, rows, xp) * scale(),
            start_index=scheme.start_index(taylor),
            analytic_columns=(lambda rows: self._analytic(alpha, rows, scale(), xp)) if terms else None,
            terms=terms,
        )

    dt_power: ClassVar[float] = -1.0  # the result's unit of time is this times alpha

    @property
    def _terms(self) -> int:
        """How many of x(0) and dt x'(0) have a column of their own."""
        return 0

    def _analytic(self, alpha: Array, rows: np.ndarray, scale: Array, xp: Namespace) -> Array:
        """The columns [*c, terms, k] on x(0) and dt x'(0), at the given rows."""
        return taylor_columns(alpha, self._terms, rows, xp) * scale[..., None, :]

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
        try:
            low, high = (float(b) for b in bounds)
        except (TypeError, ValueError):
            raise TypeError(
                f"{self._name}(bounds={bounds!r}): needs two numbers; pass a pair such as (0, 1)."
            ) from None
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
    """Return what the weights of a tensor alpha depend on besides its values: the same operator at its upper bound."""
    kind = type(definition)
    own = tuple(getattr(definition, name) for name in _own_fields(kind))  # type: ignore[arg-type]
    return _family(kind, definition.scheme, definition.interval, own)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _family(kind: type[Definition], scheme: str, interval: tuple[float, float], own: tuple) -> Definition:
    options: dict[str, Any] = dict(zip(_own_fields(kind), own, strict=True))  # type: ignore[arg-type]
    return kind(interval[1], scheme, interval, **options)


@cache
def _own_fields(kind: type[Definition]) -> tuple[str, ...]:
    """Return what a class of definitions has besides the order, its scheme and its bounds."""
    return tuple(field.name for field in fields(kind) if field.init and field.name not in ("alpha", "scheme", "bounds"))


def _read_fixed(owner: str, alpha: Any) -> float | tuple | None:
    """Return alpha as a float or nested tuple of floats, or None when it is a framework's tensor."""
    is_other_scalar = isinstance(alpha, np.generic) and not isinstance(alpha, Real)
    if isinstance(alpha, bool | str | bytes | complex) or is_other_scalar or alpha is None:
        raise TypeError(
            f"{owner}(alpha={alpha!r}): needs a real number, a sequence of them or a tensor; "
            "pass for example alpha=0.5."
        )
    if isinstance(alpha, Real):
        return float(alpha)
    if isinstance(alpha, Sequence | np.ndarray):
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
    if hasattr(alpha, "shape") and hasattr(alpha, "dtype"):
        return None
    raise TypeError(
        f"{owner}(alpha={alpha!r}): needs a real number, a sequence of them or a tensor; pass for example alpha=0.5."
    )


def _plain(values: Any) -> Any:
    """Return evenly nested lists of numbers as tuples of floats, else None; a compiler follows, as it cannot NumPy."""
    if type(values) in (float, int):
        return float(values)
    if type(values) not in (list, tuple) or not values:
        return None
    parts = tuple([_plain(value) for value in values])
    if any(part is None or _shape(part) != _shape(parts[0]) for part in parts):
        return None
    return parts


def _shape(values: Any) -> tuple[int, ...]:
    return (len(values), *_shape(values[0])) if isinstance(values, tuple) else ()


def _flat(values: Any) -> tuple[float, ...]:
    if not isinstance(values, tuple):
        return (values,)
    return tuple([number for value in values for number in _flat(value)])


def _nested(values: Any) -> Any:
    return tuple(_nested(v) for v in values) if isinstance(values, list) else values


def taylor_columns(alpha: Array, terms: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return k**(j - alpha) / Gamma(j + 1 - alpha), j < terms, at the given rows k: shape [*c, terms, k].

    At k = 0 the first column is 1 and the second 0. 1 / Gamma(1 - alpha) is written as
    (1 - alpha)(2 - alpha) / Gamma(3 - alpha), which is finite and has the right sign on [0, 2].
    """
    alpha = alpha[..., None]
    first = int((rows < 1).sum())  # 1 if row 0 is among them
    log_k = xp.constant(np.log(rows[first:].astype(np.float64)), alpha)
    reciprocal = xp.exp(-xp.lgamma(3 - alpha)) * (2 - alpha)
    columns = [xp.concat([0 * alpha + 1] * first + [(1 - alpha) * reciprocal * xp.exp(-alpha * log_k)])]
    if terms == 2:
        columns.append(xp.concat([0 * alpha] * first + [reciprocal * xp.exp((1 - alpha) * log_k)]))
    return xp.stack(columns)
