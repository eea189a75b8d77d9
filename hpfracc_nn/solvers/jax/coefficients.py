"""Drift and diffusion as functions of everything that they depend on, checked when a solve begins.

Each is traced once. Arrays that it reads besides t and y, from `args`, a closure or a module, become arguments, so that
JAX differentiates in all of them.

Shapes: a state is the user's array, or his pytree joined into a vector, [*shape]; m channels of noise drive it. For
orders alpha below 1 a state is also laid out as [a, *rest], with a orders and the axes that share each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.interpreters import partial_eval

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.solvers.jax.state import (
    Layout,
    RightSide,
    State,
    checked_array,
    checked_result,
    is_traced,
    right_side_of,
)
from hpfracc_nn.solvers.sde import NEARBY, OWNER, additive_message, diagonal_message, fitting_shape, joined_shape

_ROUNDING = 1e3  # times eps: by how much two ways to compute one product may differ


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Drift f and diffusion g of one solve, and their products with noise.

    Attributes:
        noise_type: "additive", "diagonal", "scalar" or "general".
        dt: The length of a step.
        times: The times of all steps, [n_steps + 1], a NumPy array.
        is_elementwise: Whether g has a state's shape and is multiplied with the noise entry by entry.
        f: The drift.
        g: The diffusion.
    """

    noise_type: str
    dt: float
    times: np.ndarray
    is_elementwise: bool
    f: RightSide = field(repr=False)
    g: RightSide = field(repr=False)
    _shift: float = 0.0

    @property
    def step(self) -> float:
        """The length of a step, `dt`."""
        return self.dt

    @property
    def read(self) -> tuple[Array, ...]:
        """What f and g read besides t and y."""
        return (*self.f.read, *self.g.read)

    def reading(self, read: tuple[Array, ...]) -> Coefficients:
        """Return coefficients with other values for the arrays that f and g read."""
        count = len(self.f.read)
        return replace(self, f=self.f.reading(read[:count]), g=self.g.reading(read[count:]))

    def drift(self, n: Any, y: Array) -> Array:
        """Return f at step n."""
        return self.f(self._time(n), y)

    def diffusion(self, n: Any, y: Array) -> Array:
        """Return g at step n."""
        return self.g(self._time(n), y)

    def _time(self, n: Any) -> Array:
        t = jnp.asarray(self.times)[n]
        return t + self._shift * self.dt if self._shift else t

    def with_slope(self, n: Any, y: Array, factor: Array) -> tuple[Array, Array]:
        """Return g, and g g' times a factor, of a diagonal diffusion."""
        g, slope = jax.linearize(lambda z: self.diffusion(n, z), y)
        return g, slope(g * factor)

    def applied(self, g: Array, noise: Array) -> Array:
        """Return the product of g with the noise of a step, an array of a state's shape."""
        if self.is_elementwise:
            return g * noise
        if self.noise_type == "scalar":
            return g[..., 0] * noise
        return jnp.einsum("...dm,...m->...d", g, noise, precision=jax.lax.Precision.HIGHEST)

    def shifted(self, part: float) -> Coefficients:
        """Return coefficients that are evaluated `part` of a step later, such as 0.5."""
        return replace(self, _shift=part)

    @property
    def reads_state(self) -> bool:
        """Whether g is computed from y, even if its derivative is 0, as that of a threshold or of rounding."""
        jaxpr = self.g.jaxpr
        computing = jaxpr.replace(eqns=[each for each in jaxpr.eqns if each.outvars])  # what only prints y returns none
        _, reads = partial_eval.dce_jaxpr(computing, [True] * len(jaxpr.outvars))
        return bool(reads[1])


def coefficients_of(sde: Any, args: Any, layout: Layout, times: np.ndarray, z: Array) -> Coefficients:
    """Return the coefficients of an equation.

    Args:
        sde: The user's equation, with drift, diffusion and noise_type.
        args: A pytree that drift and diffusion get besides t and y, or None.
        layout: How the user's state is laid out.
        times: The times of all steps, [n_steps + 1].
        z: A state, of whose shape and dtype drift and diffusion are traced.

    Raises:
        TypeError: Drift or diffusion return no arrays of the state's dtype.
        ValueError: They return another shape than is theirs.
    """

    def drift_of(found: Any) -> Array:
        return joined(layout, checked_result(f"{OWNER}(sde.drift)", found, layout))

    drift = _traced(sde.drift, args, layout, z, drift_of)
    shapes: list[tuple[int, ...]] = []

    def checked_of(found: Any) -> Array:
        value = _checked_diffusion(sde.noise_type, found, layout)
        shapes.append(value.shape)
        return value

    diffusion = _traced(sde.diffusion, args, layout, z, checked_of)
    dt = float(times[-1] - times[0]) / (times.size - 1)
    is_elementwise = len(shapes[0]) == len(state_shape(layout))
    return Coefficients(sde.noise_type, dt, times.astype(layout.dtype), is_elementwise, drift, diffusion)


def state_shape(layout: Layout) -> tuple[int, ...]:
    """Return the shape of a state: of the user's array, or of the vector that his pytree is joined into."""
    return layout.shapes[0] if layout.is_array else layout.shape[1:]


def noise_shape(coefficients: Coefficients, layout: Layout, z: Array) -> tuple[int, ...]:
    """Return the shape of the noise of a step: of a state if g has that shape, else [*batch, m]."""
    if coefficients.is_elementwise:
        return state_shape(layout)
    g = jax.eval_shape(lambda: coefficients.diffusion(0, z))
    return (*g.shape[:-2], g.shape[-1])


def joined(layout: Layout, y: State) -> Array:
    """Return the user's state as one array: itself, or his pytree joined into a vector."""
    return y if layout.is_array else layout.joined(y)[0]


def parted(layout: Layout, z: Array) -> State:
    """Return states [*time, *shape] as the user's arrays or pytree, time first; the inverse of `joined`."""
    return z if layout.is_array else layout.parted(z[..., None, :])


def by_order(layout: Layout, z: Array) -> Array:
    """Return a state [*shape] laid out by orders, [a, *rest]."""
    return layout.joined(z) if layout.is_array else z[None]


def from_orders(layout: Layout, rows: Array) -> Array:
    """Return an array laid out by orders, [a, *rest], as a state [*shape]; the inverse of `by_order`."""
    return layout.parted(rows) if layout.is_array else rows[0]


def _traced(
    function: Callable[..., Any], args: Any, layout: Layout, z: Array, returned: Callable[[Any], Array]
) -> RightSide:
    def flat(t: Array, z: Array) -> Array:
        y = parted(layout, z)
        return returned(function(t, y) if args is None else function(t, y, args))

    return right_side_of(flat, jnp.zeros((), layout.dtype), z)


def _checked_diffusion(noise_type: str, found: Any, layout: Layout) -> Array:
    what = f"{OWNER}(sde.diffusion)"
    if layout.is_array:
        if not jax.tree_util.treedef_is_leaf(jax.tree.structure(found)):
            raise TypeError(f"{what}: needs an array; it returned {type(found).__name__}.")
        value = checked_array(what, found, layout)
        fitting_shape(noise_type, value.shape, layout.shapes[0])
        return value
    leaves, tree = jax.tree.flatten(found)
    is_alike = tree == layout.tree
    arrays = [checked_array(what, leaf, layout) for leaf in leaves] if is_alike else []
    returned = [tuple(part.shape) for part in arrays] if is_alike else type(found).__name__
    joined_shape(noise_type, returned, list(layout.shapes))
    return joined(layout, jax.tree.unflatten(tree, arrays))


def checked_structure(coefficients: Coefficients, z0: Array, needs_diagonal: bool) -> Array:
    """Return the state at the start, or raise unless the diffusion depends on the state as its noise type says.

    For an additive diffusion its traced program shows this. For a diagonal one its Jacobian is checked with numbers: at
    the first time for the start and a state nearby, and at the last time for that state; if these are traced,
    `jax.experimental.checkify` raises.

    Raises:
        ValueError: It depends on y where it is additive, or on other entries of y where a scheme needs it diagonal.
    """
    c = coefficients
    if c.noise_type == "additive" and c.reads_state:
        raise ValueError(additive_message("as it is written"))
    if not (needs_diagonal and c.noise_type == "diagonal"):
        return z0
    nearby = z0 + (NEARBY * _varied(z0, 1.5)) * (1 + jnp.abs(z0))
    last = c.times.size - 1
    wrong = jnp.stack([_is_coupled(c, n, y) for n, y in ((0, z0), (0, nearby), (last, nearby))])
    if is_traced(wrong):
        return checked(z0, ~wrong.any(), diagonal_message("some time"))
    if bool(wrong.any()):
        n = (0, 0, last)[int(jnp.argmax(wrong))]
        raise ValueError(diagonal_message(f"t={float(c.times[n]):g}"))
    return z0


def _varied(z: Array, mean: float) -> Array:
    return (mean + 0.5 * jnp.cos(jnp.arange(1.0, z.size + 1, dtype=z.dtype))).reshape(z.shape)


def _is_coupled(c: Coefficients, n: int, y: Array) -> Array:
    """Return whether the Jacobian of an elementwise diffusion at step n and state y is not diagonal, a scalar.

    Two products with its transpose show this to rounding: `J^T d` and `d * J^T 1` agree for a diagonal J.
    """
    g, pull = jax.vjp(lambda z: c.diffusion(n, z), y)
    direction = beside(jnp.cos(jnp.arange(1.0, g.size + 1, dtype=g.dtype)).reshape(g.shape), g)
    (found,), (alone,) = pull(direction), pull(jnp.ones_like(g))
    size = _ROUNDING * jnp.finfo(g.dtype).eps * jnp.abs(alone).max()
    return (jnp.abs(found - direction * alone) > size).any()
