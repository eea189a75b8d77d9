"""Distributed order: an integral, or a sum, of operators over their order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.definitions.definition import SIDES, Definition
from hpfracc_nn.fractional.definitions.power_law import (
    Caputo,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
)
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.stencil import Stencil

_KINDS = (Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral)


@dataclass(frozen=True, eq=False, kw_only=True)
class DistributedOrder(Definition):
    """The sum over j of weights[j] D^nodes[j] x: a quadrature of an integral of density(alpha) D^alpha x over alpha.

    The sum of stencils is a stencil, so that it costs what one operator costs, however many orders there are. Its
    memory function is the sum of theirs. The orders and weights are numbers; where they are to be learned, sum the
    operators of a tensor of orders.

    Attributes:
        nodes: The orders, all on one side of 1 where a Taylor polynomial is subtracted.
        weights: One factor for each order.
        kind: The operator of each order: Caputo, RiemannLiouville, GrunwaldLetnikov or RiemannLiouvilleIntegral.
        scheme: The scheme of all operators; the kind's own by default.

    Raises:
        ValueError: There are no orders, not as many weights as orders, an order is out of the kind's range, or the kind
            is another one.

    Examples:
        >>> t = np.linspace(0, 1, 101)
        >>> two = DistributedOrder(nodes=(0.3, 0.8), weights=(1.0, 2.0))  # D^0.3 + 2 D^0.8
        >>> float(two(t, dt=0.01)[-1].round(4))  # 1 / Gamma(1.7) + 2 / Gamma(1.2)
        3.2788
        >>> even = DistributedOrder.over(lambda alpha: np.ones_like(alpha), 0.0, 1.0)
        >>> # the integral of 2 / Gamma(3 - alpha) over alpha
        >>> float(even(t**2, dt=0.01)[-1].round(3))
        1.504

    Source: Caputo, Fract. Calc. Appl. Anal. 4 (2001) 421; Diethelm & Ford, J. Comput. Appl. Math. 225 (2009) 96, for
    the quadrature.
    """

    alpha: float = field(init=False, default=0.0)
    scheme: str = ""
    bounds: None = field(init=False, default=None)
    nodes: tuple[float, ...]
    weights: tuple[float, ...]
    kind: type[Definition] = Caputo

    def __post_init__(self) -> None:
        nodes, weights = self._numbers("nodes"), self._numbers("weights")
        if not nodes or len(nodes) != len(weights):
            raise ValueError(
                f"DistributedOrder(nodes of length {len(nodes)}, weights of length {len(weights)}): needs a weight for "
                "each of at least one order; pass as many."
            )
        if not all(map(math.isfinite, weights)):
            raise ValueError(f"DistributedOrder(weights={weights}): needs finite weights; look at the density.")
        kinds = [each for each in _KINDS if each is self.kind]  # torch.compile makes objects of classes it can name
        if not kinds:
            names, given = ", ".join(each.__name__ for each in _KINDS), getattr(self.kind, "__name__", repr(self.kind))
            raise ValueError(f"DistributedOrder(kind={given}): needs one of {names}; pass the class, such as Caputo.")
        chosen = () if isinstance(self.scheme, str) and not self.scheme else (self.scheme,)
        inner = kinds[0](list(nodes), *chosen)
        errors.one_of("DistributedOrder", "side", self.side, SIDES)
        for name, value in (("nodes", nodes), ("weights", weights), ("scheme", inner.scheme), ("alpha", max(nodes))):
            object.__setattr__(self, name, value)

    def _numbers(self, name: str) -> tuple[float, ...]:
        given = getattr(self, name)
        if type(given) is tuple and all(type(each) is float for each in given):
            return given  # without an array, which torch.compile does not follow
        found = errors.as_numbers(given)
        if found is None or found.ndim != 1:
            raise TypeError(
                f"DistributedOrder({name}={given!r}): needs real numbers, one for each order; pass a "
                "tuple, such as (0.3, 0.8)."
            )
        return tuple(found.tolist())

    @classmethod
    def over(
        cls,
        density: Callable[[np.ndarray], Any],
        low: float,
        high: float,
        *,
        points: int = 16,
        kind: type[Definition] = Caputo,
        scheme: str = "",
    ) -> DistributedOrder:
        """Return the integral of density(alpha) D^alpha over orders from `low` to `high`.

        By Gauss and Legendre's rule: the integrand is analytic in alpha, so that the error falls geometrically with the
        points. With 16 it is 1e-14 of the largest part where the density is smooth and t / dt up to 1e6.

        Args:
            density: Returns the density at an array of orders, an array as long.
            low: The least order.
            high: The largest order; on the same side of 1 for derivatives.
            points: Number of points of the quadrature.
            kind: As in the class.
            scheme: As in the class.

        Raises:
            ValueError: As in the class; or `low` is not below `high`.
        """
        if not low < high:
            raise ValueError(f"DistributedOrder.over(low={low:g}, high={high:g}): needs low < high; exchange the two.")
        place, rule = np.polynomial.legendre.leggauss(errors.count("DistributedOrder.over", "points", points))
        nodes = low + (high - low) * (place + 1) / 2
        weights = rule * (high - low) / 2 * np.broadcast_to(np.asarray(density(nodes), np.float64), nodes.shape)
        return cls(nodes=tuple(nodes.tolist()), weights=tuple(weights.tolist()), kind=kind, scheme=scheme)

    @cached_property
    def bank(self) -> Definition:
        """The operators of all orders as one definition, with a channel for each order."""
        return self.kind(list(self.nodes), self.scheme)

    @property
    def approximated(self) -> Definition:
        """The orders as separate channels: `dt` weighs them differently, so that each needs its own approximation."""
        return self.bank

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the largest order."""
        return self.bank.interval

    @property
    def taylor(self) -> int:
        """Number of Taylor terms subtracted, the same for all orders."""
        return self.bank.taylor

    @property
    def differences(self) -> int:
        """Number of differences, m: that of the largest order."""
        return self.bank.differences

    @property
    def subtracts(self) -> bool:  # type: ignore[override]
        """Whether the operators subtract the Taylor polynomial."""
        return self.kind.subtracts

    def stencil(self, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the weighted sum of the stencils of all orders; see `Definition.stencil`."""
        return self.stencil_at(xp.asarray(self.alpha), n, dt, xp, differences)

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil of the fixed orders `nodes` in arrays of `xp`; alpha is read for its device only."""
        of = self.bank.stencil(n, dt, NUMPY, differences)

        def summed(columns: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], Array]:
            return lambda at: xp.constant(np.tensordot(self.weights, columns(at), axes=1), alpha)

        return Stencil(
            n=n,
            side=self.side,
            column=summed(of.column),
            differences=of.differences,
            subtract=of.subtract,
            taylor=of.taylor,
            start_column=None if of.start_column is None else summed(of.start_column),
            start_index=of.start_index,
            analytic_columns=None if of.analytic_columns is None else summed(of.analytic_columns),
            terms=of.terms,
        )
