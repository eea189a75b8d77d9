"""The inverse operators: the samples x from y, the values of their derivative or integral.

The algebra is that of `stencil.py`: the inverse is a product with U, one lower triangular Toeplitz matrix, and a few
columns. The weights of U behave like those of an integral. Cumulatively summed before the product they lose no digits;
above alpha = 1, where they grow, one of the sums is taken of the data instead.

What y does not determine is an argument: x(0) for Caputo and the integral, and above alpha = 1 x'(0) for Caputo.
Riemann-Liouville's first sample is dt**-alpha x(0), which gives x(0), and above alpha = 1 S is the number for which the
slope that the stencil would estimate of x is S itself.

Here U and S = dt x'(0) are those of `stencil.py`; in shapes n counts samples, *c are the axes of the orders, and ...
those of the signals, against which *c broadcasts. `xp` is the namespace of the data's
framework, and `operator` its module of array functions, such as `fractional/torch/operator.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import (
    Caputo,
    Definition,
    DistributedOrder,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    family,
)
from hpfracc_nn.fractional.definitions.definition import check_definition
from hpfracc_nn.fractional.dispatch import Samples, backend, placed, shape_of
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.namespace import NAMESPACES, NUMPY, Array, Namespace
from hpfracc_nn.fractional.stencil import InverseColumns, Stencil, inverse_columns, reciprocal, solved, summed
from hpfracc_nn.fractional.weights import CACHE, fixed_stencil
from hpfracc_nn.selection import BackendManager

OWNER = "solve"
SOLVABLE = (Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral)


def solve(
    y: Samples,
    definition: Definition,
    *,
    x0: Samples | None = None,
    dx0: Samples | None = None,
    dt: float = 1.0,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Samples:
    """Return x with `derivative(x, definition)` = y along `dim`, in O(n log n): the inverse of the discrete operator.

    It undoes the operator to rounding: in float64 to about 1e-13 of x, for any y. As a deconvolution it is stable,
    because the inverse of a derivative is an integral, and of an integral of order alpha a derivative, which amplifies
    noise by dt**-alpha. Computed in float64; of JAX arrays in float32, and right to its rounding as the inverse
    amplifies it, where the process has not enabled 64 bit types.

    Args:
        y: Values of the operator at 0, dt, 2 dt, ...; as `x` in `derivative`.
        definition: Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral of an order between 0 and 1,
            or a DistributedOrder of these; side="left".
        x0: The first sample, a number or of the shape of `y` without `dim`, where y does not tell it: for Caputo and
            the integral; None is 0.
        dx0: The derivative x'(0) in the same way, for Caputo above order 1.
        dt: As in `derivative`.
        dim: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape, dtype and device as `y`; units of `y time**alpha`, for an integral `y / time**alpha`. Differentiable
        in y, a learned alpha, x0 and dx0.

    Raises:
        TypeError: As in `derivative`.
        ValueError: As in `derivative`; the definition has no such inverse; x0 or dx0 is given where y tells it, or
            where no derivative is subtracted; or does not broadcast to the shape of y without `dim`.
        LookupError: As in `derivative`.

    Source: Kung, Numer. Math. 22 (1974) 341, for the reciprocal of the weights' power series.

    Examples:
        >>> x = 1 + np.linspace(0, 1, 101) ** 2
        >>> y = derivative(x, Caputo(0.5), dt=0.01)
        >>> bool(np.allclose(solve(y, Caputo(0.5), x0=1.0, dt=0.01), x))
        True
    """
    check_definition(OWNER, definition)
    y, framework = placed(OWNER, "y", y, manager, definition.alpha)
    return applied(y, definition, x0, dx0, dt, dim, manager, backend(framework).operator, NAMESPACES[framework])


def applied(
    y: Array,
    definition: Definition,
    x0: Samples | None,
    dx0: Samples | None,
    dt: float,
    dim: int,
    manager: BackendManager | None,
    operator: Any,
    xp: Namespace,
) -> Array:
    """Return the samples x whose derivative or integral is y, by a framework's `operator` module and namespace.

    Other arguments are those of `solve`.
    """
    operator.check_samples(OWNER, "y", y, definition)
    alpha = None if definition.is_fixed else operator.checked_alpha(OWNER, definition)
    dt, axis = errors.positive_step(OWNER, dt), errors.axis(OWNER, dim, y.ndim)
    inverse = inverse_of(OWNER, definition)
    _check_start(OWNER, definition, x0, dx0)
    layout_of(OWNER, tuple(y.shape), axis, shape_of(definition.alpha))
    if operator.is_hollow(y):
        return y + 0 if alpha is None else y + 0 * xp.like(alpha.sum(), y)
    with operator.exactly(y):
        data = xp.asarray(xp.moveaxis(y, axis, -1))
        first, slope = (_given(name, value, data, xp) for name, value in (("x0", x0), ("dx0", dx0)))
        x = solved(
            _columns(definition, alpha, y.shape[axis], dt, data, operator, xp),
            data,
            lambda z: operator.apply(OWNER, z, inverse, dt, -1, manager),
            first,
            None if slope is None else slope * dt,
            xp,
        )
        return xp.contiguous(xp.astype(xp.moveaxis(x, -1, axis), y.dtype))


def _given(name: str, value: Any, data: Array, xp: Namespace) -> Array | None:
    """Return x0 or dx0 with an axis for time, [..., 1], None for None; raise unless it broadcasts to the signals.

    Args:
        name: "x0" or "dx0", for the message.
        value: The caller's argument.
        data: The samples y with time last, [..., n], whose dtype and device it takes.
        xp: The namespace of the data.
    """
    if value is None:
        return None
    found = xp.like(xp.asarray(value), data)
    shape, signals = tuple(found.shape), tuple(data.shape[:-1])
    # Axes are compared from the last one on; missing ones count as 1.
    fits = all(size in (1, many) for size, many in zip(shape[::-1], signals[::-1], strict=False))
    if len(shape) > len(signals) or not fits:
        raise ValueError(
            f"{OWNER}({name} of shape {shape}): needs a number, or a shape that broadcasts to that of y without dim, "
            f"{signals}; pass one value for each signal."
        )
    return found[..., None]


def _columns(
    definition: Definition, alpha: Array | None, n: int, dt: float, data: Array, operator: Any, xp: Namespace
) -> InverseColumns:
    """Return what the inverse on n samples needs besides the product with U: a few columns, float64 arrays [*c, n].

    For a fixed alpha the columns come from a cache; for a learned alpha they are computed so that gradients reach it.

    Args:
        definition: The operator to invert.
        alpha: The learned orders, an array [*c] of the framework; None where the definition's are fixed.
        n: Number of samples.
        dt: Their spacing.
        data: The samples y with time last, [..., n]; the columns take their device.
        operator: See the module's docstring.
        xp: The namespace of the data.
    """
    if alpha is not None:
        of = family(definition)
        return InverseColumns(fixed_stencil(of, n, dt), *operator.in_double(_traced_columns, (of, n, dt), alpha, data))
    key = "inverse", definition, n, dt
    kept = CACHE.get(key, lambda: inverse_columns(definition.stencil(n, dt, NUMPY), NUMPY))
    start, head = (None if each is None else xp.constant(each, data) for each in (kept.start, kept.head))
    return InverseColumns(kept.stencil, [xp.constant(each, data) for each in kept.known], start, head)


def _traced_columns(alpha: Array, of: Definition, n: int, dt: float, xp: Namespace) -> tuple[Any, ...]:
    """Return the arrays of `InverseColumns` for orders alpha [*c], which may be traced: `known`, `start` and `head`.

    `known` is a list of at most two columns [*c, n]: what x(0) = 1 gives in y, and what S = 1 gives in y; `start`,
    [*c, n], takes the stencil's starting column back; `head` has the first four weights of U. The last two may be None.

    Args:
        alpha: The orders, an array of `xp`.
        of: The operator at its upper bound, see `definitions.family`.
        n: Number of samples.
        dt: Their spacing.
        xp: The namespace of alpha.
    """
    found = inverse_columns(of.stencil_at(alpha, n, dt, xp), xp)
    return found.known, found.start, found.head


def _check_start(owner: str, definition: Definition, x0: Samples | None, dx0: Samples | None) -> None:
    kind = kind_of(definition)
    name = kind.__name__
    if x0 is not None and kind not in (Caputo, RiemannLiouvilleIntegral):
        raise ValueError(f"{owner}({name}, x0=...): needs no first sample, which y tells; leave x0 out.")
    if dx0 is not None and not (kind is Caputo and definition.taylor == 2):
        raise ValueError(
            f"{owner}({name}(alpha={definition.alpha}), dx0=...): needs no derivative at the start, which only "
            "Caputo's above order 1 takes away; leave dx0 out."
        )


@dataclass(frozen=True, eq=False)
class Inverse(Definition):
    """U, the triangular part of an operator's inverse, as a Definition that kernels apply, in float64.

    Attributes:
        of: The operator that is inverted; where its alpha is a tensor, the operator at its upper bound.
    """

    of: Definition = field(default_factory=lambda: Caputo(0.5))

    subtracts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Skip validation; the wrapped operator is already valid."""

    @property
    def _name(self) -> str:
        return f"inverse of {type(self.of).__name__}"

    @property
    def taylor(self) -> int:
        """The number of Taylor terms; 1 because no polynomial is subtracted."""
        return 1

    @property
    def differences(self) -> int:
        """How often the data are differenced first: -1, a cumulative sum, above order 1, else 0."""
        return -1 if self.of.interval[1] > 1 and self.of.differences > 0 else 0

    @property
    def approximated(self) -> None:
        """None: sums of exponentials are not accurate enough for the inverse, because of cancellation."""
        return

    @property
    def is_wide(self) -> bool:
        """True, computed in float64: float32's rounding of sums over n samples would show in the differences of x."""
        return True

    @property
    def dt_power(self) -> float:  # type: ignore[override]
        """The power of dt per unit of alpha in the weights: the negative of the operator's."""
        return -self.of.dt_power

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil of U for orders `alpha`; see `Definition.stencil_at`."""
        m = self.differences if differences is None else differences

        def column(lags: np.ndarray) -> Array:
            return xp.take(_column(self.of, alpha, dt, self.of.differences + m, int(lags.max()) + 1, xp), lags, axis=-1)

        return Stencil(n=n, column=column, differences=m, subtract=False)


def inverse_of(owner: str, definition: Definition) -> Inverse:
    """Return the triangular part of a definition's inverse.

    Raises:
        ValueError: The definition has no inverse that is causal and bounded.
    """
    kind = kind_of(definition)
    if kind not in SOLVABLE:
        names = ", ".join(each.__name__ for each in SOLVABLE)
        raise ValueError(f"{owner}({kind.__name__}): needs one of {names}, whose inverse is causal; pass one of these.")
    if definition.side != "left":
        raise ValueError(
            f"{owner}(side={definition.side!r}): needs side='left', the only one whose inverse is causal; of 'right' "
            "solve the reversed samples, y.flip(dim) or numpy.flip(y, dim), with side='left', and reverse the result."
        )
    if kind is type(definition) and not definition.is_plain:
        raise ValueError(f"{owner}({definition}): needs no option but alpha, scheme and bounds; leave the others out.")
    if kind is RiemannLiouvilleIntegral and not _is_inside(definition):
        raise ValueError(
            f"{owner}(alpha={definition.alpha}): needs an integral of an order between 0 and 1, because from 1 on the "
            "inverse of the trapezoid rule oscillates and grows; apply RiemannLiouville of that order in its place."
        )
    if kind is RiemannLiouville and definition.is_fixed and 2.0 in definition.orders:
        raise ValueError(
            f"{owner}(alpha={definition.alpha}): needs an order below 2, because the second derivative of t is zero; "
            "pass Caputo of order 2 with x0 and dx0."
        )
    of = definition if definition.is_fixed else family(definition)
    return Inverse(definition.alpha, definition.scheme, definition.bounds, of)


def _is_inside(definition: Definition) -> bool:
    low, high = definition.interval
    return low > 0 and high < 1 if definition.is_fixed else high <= 1


def kind_of(definition: Definition) -> type[Definition]:
    """Return the class whose stencil a definition has: its own, or that of the operators in a DistributedOrder."""
    return definition.kind if isinstance(definition, DistributedOrder) else type(definition)


def _column(of: Definition, alpha: Array, dt: float, sums: int, n: int, xp: Namespace) -> Array:
    """Return n coefficients of 1 / w(z), cumulatively summed `sums` times, [*c, n]; for NumPy orders from a cache.

    w(z) is the power series whose coefficients are the weights of the operator `of` at orders alpha [*c].
    """

    def made() -> Array:
        return summed(reciprocal(of.stencil_at(alpha, n, dt, xp).weights, xp), sums, xp)

    if not isinstance(alpha, np.ndarray):
        return made()
    return CACHE.get(("reciprocal", of, alpha.tobytes(), alpha.shape, dt, sums, n), made)
