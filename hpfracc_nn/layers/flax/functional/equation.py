"""What layers share that solve D^alpha z = f(t, z) up to a time: their order, and states of half precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy
from hpfracc_nn.layers.flax.functional.core import Params, hashable, settle
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.layers.order import check_block_bounds, check_block_orders, fixed_orders
from hpfracc_nn.solvers.jax import fdeint
from hpfracc_nn.solvers.method import Method

Field = Callable[[Array, Array, Any], Array]  # f(t, z, variables), z's shape


class Solving:
    """A core around an equation that has an order.

    Attributes:
        order: The learned order; None where it is fixed.
    """

    alpha: Any
    order: Alpha | None

    @property
    def orders_shape(self) -> tuple[int, ...]:
        """The shape of the order."""
        return np.shape(self.alpha) if self.order is None else self.order.shape  # type: ignore[return-value]

    def alpha_of(self, params: Params) -> float | tuple[float, ...] | Array:
        """Return the order in real units: an array where it is learned, the mean where it is random."""
        return self.alpha if self.order is None else self.order.mean(params["order"])  # type: ignore[no-any-return]

    def _order_params(self, key: Array | None, param_dtype: Any) -> Params:
        """The order's part of the parameters."""
        return {} if self.order is None else {"order": self.order.init(key, param_dtype)}

    def _orders(self, params: Params, key: Array | None) -> float | np.ndarray | Array:
        """The order of one solve: alpha, or what a random one draws."""
        if self.order is not None:
            return self.order(params["order"], key=key)
        return np.asarray(self.alpha) if isinstance(self.alpha, tuple) else self.alpha  # type: ignore[no-any-return]


class CaputoEquation(Solving):
    """One of Caputo's, of an order in (0, 1], whose right-hand side is still to be said."""

    t1: float
    n_steps: int
    learn_alpha: bool
    bounds: Any
    scheme: Any
    history: Any
    adjoint: bool
    manager: Any

    def _begin(self) -> None:
        """Check and settle what all of them are given."""
        owner = type(self).__name__
        Method.of(owner, self.scheme, self.history, "uniform")
        order, alpha = self.alpha, hashable(self.alpha)
        if isinstance(order, Alpha):
            check_block_bounds(owner, order.taken_by(owner, self.bounds, order.shape))  # type: ignore[arg-type]
        else:
            values = fixed_orders(owner, alpha)
            check_block_orders(owner, alpha, values, self.bounds)
            within = (0.0, 1.0) if self.bounds is None else self.bounds
            order = Alpha(hashable(values.tolist()), within, values.shape, owner=owner) if self.learn_alpha else None
        settle(
            self,
            alpha=alpha,
            bounds=hashable(self.bounds),
            t1=errors.real(owner, "t1", self.t1, 0.0, above=True),
            n_steps=errors.count(owner, "n_steps", self.n_steps),
            learn_alpha=order is not None,
            order=order,
        )

    def _last(self, f: Field, variables: Any, z0: Array, params: Params, key: Array | None) -> Array:
        """Return the state at t1 of a solve from z0, of whose dtype it is; half precision is added up in float32."""
        z0 = of_numpy(z0)
        dtype = computed_in(type(self).__name__, z0)
        if 0 in z0.shape:
            return z0
        if dtype != z0.dtype.name:
            f = AtHalf(f, z0.dtype)
        states = fdeint(
            f,
            z0.astype(dtype),
            (0.0, self.t1),
            self._orders(params, key),
            scheme=self.scheme,
            history=self.history,
            n_steps=self.n_steps,
            adjoint=self.adjoint,
            args=variables,
            manager=self.manager,
        )
        return states[-1].astype(z0.dtype)


@dataclass(frozen=True)
class AtHalf:
    """f of a state that is added up in float32.

    Attributes:
        f: The right-hand side.
        dtype: What it is given.
    """

    f: Field
    dtype: Any

    def __call__(self, t: Array, z: Array, variables: Any) -> Any:
        """Return f(t, z) in z's dtype."""
        found = self.f(jnp.asarray(t).astype(self.dtype), z.astype(self.dtype), variables)
        return found.astype(z.dtype) if isinstance(found, jax.Array) else found
