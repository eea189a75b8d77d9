"""What a definition is at any times: an integral of what its scheme interpolates, cell by cell.

    y(t_n) = I^p w (t_n) + analytic terms,      w linear on each cell,

with w the derivative of the interpolated samples (above alpha = 1: of their slopes) and p = ceil(alpha) - alpha, or for
an integral w the interpolated samples and p = alpha. At equal steps these are the stencils of the schemes l1, l1_2 and
trapezoid: above alpha = 1 the slope at a sample is the two-step backward difference, at the first step that of the
parabola that begins with x'(0), and x'(0) comes from the first four samples.

Everything here is float64 and of shape [sets, ...]; sets is 1 where all signals share times and orders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral, family
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.nonuniform.times import Times
from hpfracc_nn.fractional.schemes import SCHEMES, Scheme

_KINDS = (Caputo, RiemannLiouville, RiemannLiouvilleIntegral)


@dataclass(frozen=True)
class Cellwise:
    """A definition's formulas at any times.

    Attributes:
        definition: Which; of orders in an array their family, so that nothing traced is kept with formulas.
        taylor: Terms of the Taylor polynomial, 1 or 2.
    """

    definition: Definition
    taylor: int

    @property
    def scheme(self) -> Scheme:
        """The definition's scheme."""
        return SCHEMES[self.definition.scheme]

    @property
    def inputs(self) -> int:
        """Numbers that stand on a cell: its mean, and half its increase where it is no constant."""
        return 1 if self.definition.scheme == "l1" else 2

    def power(self, alpha: Array) -> Array:
        """Return the order of the integral."""
        assert self.scheme.power is not None, "`cellwise` refuses such schemes"
        return self.scheme.power(alpha, self.taylor)

    def pieces(self, x: Array, times: Times, xp: Namespace) -> list[Array]:
        """Return what stands on each cell, each [sets, rows, n - 1], from samples x [sets, rows, n], n > 1."""
        steps = xp.constant(times.steps[:, None], x)
        samples = self._slopes(x, times, xp) if self.taylor == 2 else x
        assert self.scheme.pieces is not None, "`cellwise` refuses such schemes"
        return self.scheme.pieces(samples, steps, xp)

    def check(self, owner: str, times: Times) -> None:
        """Raise where there are too few times."""
        if times.cells == 0 and isinstance(self.definition, RiemannLiouville):
            raise ValueError(
                f"{owner}(t of one time): needs two times or more, because the first step scales the first sample, "
                "where this derivative is infinite; pass more samples, or dt."
            )

    def columns(self, alpha: Array, times: Times, xp: Namespace) -> Array | None:
        """Return the columns [sets, terms, n] that multiply x(0) and x'(0); None where there are none.

        Args:
            alpha: [a, 1], or each row its own, [a, n].
            times: More than one.
            xp: The namespace of alpha.
        """
        if isinstance(self.definition, RiemannLiouville):
            return _riemann_liouville(alpha, times, self.taylor, xp)
        if isinstance(self.definition, RiemannLiouvilleIntegral) and isinstance(alpha, np.ndarray):
            first = np.eye(1, times.n)
            is_identity = np.equal(alpha, 0) * first  # which the limit from above misses at the first sample
            return xp.stack([xp.constant(is_identity, alpha)]) if is_identity.any() else None
        return None

    def heads(self, x: Array, times: Times, xp: Namespace) -> list[Array]:
        """Return what the columns multiply, each [sets, rows, 1]: x(0) and, of two, x'(0)."""
        return [x[..., :1]] if self.taylor == 1 else [x[..., :1], self._first_slope(x, times, xp)]

    def _slopes(self, x: Array, times: Times, xp: Namespace) -> Array:
        """Return the slope of x less its Taylor polynomial at every sample, 0 at the first."""
        steps = times.steps[:, None]
        before = np.concatenate([0 * steps[..., :1], steps[..., :-1]], axis=-1)  # the slope at 0 is known itself
        slope = (x[..., 1:] - x[..., :-1]) / xp.constant(steps, x) - self._first_slope(x, times, xp)
        nothing = 0 * slope[..., :1]
        increase = slope - xp.concat([nothing, slope[..., :-1]])
        return xp.concat([nothing, slope + increase * xp.constant(steps / (steps + before), x)])

    def _first_slope(self, x: Array, times: Times, xp: Namespace) -> Array:
        """Return x'(0) from the first four samples, [sets, rows, 1]."""
        row = first_slope_row(times.values[:, :4])[:, None, 1:]
        # The weights sum to zero. Of differences single precision loses no digit, and each counts in all that follows.
        increases = x[..., 1 : row.shape[-1] + 1] - x[..., :1]
        return xp.sum(increases * xp.constant(row, x))[..., None]


def cellwise(owner: str, definition: Definition) -> Cellwise:
    """Return a definition's formulas at any times.

    Raises:
        ValueError: There are none for this definition or scheme.
    """
    if type(definition) not in _KINDS:
        names = ", ".join(kind.__name__ for kind in _KINDS)
        raise ValueError(
            f"{owner}(definition={type(definition).__name__}, t=...): needs one of {names} at times that are not "
            "equally spaced; pass one of these, or dt."
        )
    if not definition.is_plain:
        raise ValueError(
            f"{owner}({definition}, t=...): needs no option but alpha, scheme and bounds at times that are not equally "
            "spaced; leave the others out, or pass dt."
        )
    if SCHEMES[definition.scheme].pieces is None:
        usable = [name for name in type(definition).schemes if SCHEMES[name].pieces is not None]
        raise ValueError(
            f"{owner}({type(definition).__name__}(scheme={definition.scheme!r}), t=...): needs a scheme that takes any "
            f"steps; pass scheme={' or '.join(map(repr, usable))}, or dt."
        )
    return Cellwise(definition if definition.is_fixed else family(definition), definition.taylor)


def first_slope_row(times: np.ndarray) -> np.ndarray:
    """Return the rows [grids, k] that give the derivative at the first of k times of the polynomial through all k."""
    t = times - times[:, :1]
    grids, k = t.shape
    row = np.zeros((grids, k))
    for j in range(1, k):
        others = [i for i in range(1, k) if i != j]
        row[:, j] = np.prod([-t[:, i] / (t[:, j] - t[:, i]) for i in others], axis=0) / t[:, j]
    row[:, 0] = -row[:, 1:].sum(axis=1)
    return row


def _riemann_liouville(alpha: Array, times: Times, terms: int, xp: Namespace) -> Array:
    """Return (t - t_0)**(j - alpha) / Gamma(j + 1 - alpha), j < terms, [sets, terms, n].

    The first sample's are h**-alpha, h the first step, and 0; the gamma functions as in `definition.taylor_columns`.
    """
    elapsed = times.values[:, 1:] - times.values[:, :1]
    log_step = xp.constant(np.log(times.steps[:, :1]), alpha)
    log_t = xp.constant(np.log(elapsed), alpha)
    at_first, later = (alpha, alpha) if alpha.shape[-1] == 1 else (alpha[..., :1], alpha[..., 1:])
    reciprocal = xp.exp(-xp.lgamma(3 - later)) * (2 - later)
    first = xp.exp(-at_first * log_step)
    columns = [xp.concat([first, (1 - later) * reciprocal * xp.exp(-later * log_t)])]
    if terms == 2:
        columns.append(xp.concat([0 * first, reciprocal * xp.exp((1 - later) * log_t)]))
    return xp.stack(columns)
