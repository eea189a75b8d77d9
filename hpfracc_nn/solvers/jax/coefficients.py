"""Drift and diffusion as steps work with them, functions of everything that they depend on; checked at the door.

Each is traced once. What it reads besides t and y, be it `args`, arrays of its own or of a module that it is, becomes
arguments, so that derivatives by them are seen wherever they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.interpreters import partial_eval

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.solvers.jax.arguments import State, is_traced
from hpfracc_nn.solvers.jax.layout import Layout
from hpfracc_nn.solvers.jax.programs import facts_of
from hpfracc_nn.solvers.jax.right_side import RightSide, right_side_of
from hpfracc_nn.solvers.sde import NEARBY, OWNER, additive_message, diagonal_message, fitting_shape, joined_shape

_ROUNDING = 1e3  # times eps: what two ways to compute one product may differ by


@dataclass(frozen=True, eq=False)
class Coefficients:
    """f and g of one solve; states are the user's array, or his pytree joined into a vector.

    Attributes:
        noise_type: Of the equation.
        dt: The step.
        times: Of all steps, [n + 1]; NumPy's, so that no derivative closes over what is traced.
        is_elementwise: Whether g has a state's shape.
        given: What f and g read besides t and y.
        f: The drift.
        g: The diffusion.
    """

    noise_type: str
    dt: float
    times: np.ndarray
    is_elementwise: bool
    given: tuple[Array, ...]
    f: RightSide = field(repr=False)
    g: RightSide = field(repr=False)
    _shift: float = 0.0

    @property
    def step(self) -> float:
        """The step."""
        return self.dt

    def drift(self, n: Any, y: Array) -> Array:
        """Return f at step n."""
        return self.f.field(self.given[: self.f.count])(self._time(n), y)

    def diffusion(self, n: Any, y: Array) -> Array:
        """Return g at step n."""
        return self.g.field(self.given[self.f.count :])(self._time(n), y)

    def _time(self, n: Any) -> Array:
        t = jnp.asarray(self.times)[n]
        return t + self._shift * self.dt if self._shift else t

    def with_slope(self, n: Any, y: Array, factor: Array) -> tuple[Array, Array]:
        """Return g, and g g' times a factor, of a diagonal diffusion."""
        g, slope = jax.linearize(lambda z: self.diffusion(n, z), y)
        return g, slope(g * factor)

    def applied(self, g: Array, noise: Array) -> Array:
        """Return g times the noise of a step, of a state's shape."""
        if self.is_elementwise:
            return g * noise
        if self.noise_type == "scalar":
            return g[..., 0] * noise
        return jnp.einsum("...dm,...m->...d", g, noise, precision=jax.lax.Precision.HIGHEST)

    def shifted(self, part: float) -> Coefficients:
        """Return those at times that lie a part of a step later."""
        return replace(self, _shift=part)

    def reading(self, given: tuple[Array, ...]) -> Coefficients:
        """Return those that read other values."""
        return replace(self, given=given)

    @property
    def bare(self) -> Coefficients:
        """The same without what f and g read."""
        return replace(self, given=(), f=self.f.bare, g=self.g.bare)

    @property
    def facts(self) -> Hashable:
        """What they compute, to be compared."""
        times = (self.times.dtype, self.times.tobytes())
        return self.noise_type, self.dt, times, self.is_elementwise, facts_of(self.f.jaxpr), facts_of(self.g.jaxpr)

    @property
    def reads_state(self) -> bool:
        """Whether g is computed from y, whatever comes out: a threshold or a rounding has no derivative to tell."""
        jaxpr = self.g.jaxpr
        computing = jaxpr.replace(eqns=[each for each in jaxpr.eqns if each.outvars])  # what only prints y returns none
        _, reads = partial_eval.dce_jaxpr(computing, [True] * len(jaxpr.outvars))
        return bool(reads[1])


def coefficients_of(sde: Any, args: Any, layout: Layout, times: np.ndarray, z: Array) -> Coefficients:
    """Return the coefficients of an equation.

    Args:
        sde: The user's.
        args: A pytree that drift and diffusion get besides t and y, or None.
        layout: Of its states.
        times: Of all steps, [n + 1].
        z: A state.

    Raises:
        TypeError: Drift or diffusion return no arrays of the state's dtype.
        ValueError: They return another shape than is theirs.
    """
    drift = _traced(sde.drift, args, layout, z, lambda found: _checked_drift(found, layout))
    shapes: list[tuple[int, ...]] = []

    def checked_of(found: Any) -> Array:
        value = _checked_diffusion(sde.noise_type, found, layout)
        shapes.append(value.shape)
        return value

    diffusion = _traced(sde.diffusion, args, layout, z, checked_of)
    dt = float(times[-1] - times[0]) / (times.size - 1)
    is_elementwise = len(shapes[0]) == len(state_shape(layout))
    along, given = times.astype(layout.dtype), (*drift.given, *diffusion.given)
    return Coefficients(sde.noise_type, dt, along, is_elementwise, given, drift, diffusion)


def state_shape(layout: Layout) -> tuple[int, ...]:
    """Return the shape of a state as steps work with it."""
    return layout.shapes[0] if layout.is_array else layout.shape[1:]


def noise_shape(coefficients: Coefficients, layout: Layout, z: Array) -> tuple[int, ...]:
    """Return the shape of the noise of a step."""
    if coefficients.is_elementwise:
        return state_shape(layout)
    g = jax.eval_shape(lambda: coefficients.diffusion(0, z))
    return (*g.shape[:-2], g.shape[-1])


def joined(layout: Layout, y: State) -> Array:
    """Return the user's state as steps work with it."""
    return y if layout.is_array else layout.joined(y)[0]


def parted(layout: Layout, z: Array) -> State:
    """Return states [*time, *shape] as the user's, time first."""
    return z if layout.is_array else layout.parted(z[..., None, :])


def by_order(layout: Layout, z: Array) -> Array:
    """Return a state [*shape] as the past has it, [a, *rest]."""
    return layout.joined(z) if layout.is_array else z[None]


def from_orders(layout: Layout, rows: Array) -> Array:
    """Return what the past has, [a, *rest], as a state [*shape]."""
    return layout.parted(rows) if layout.is_array else rows[0]


def _traced(
    function: Callable[..., Any], args: Any, layout: Layout, z: Array, returned: Callable[[Any], Array]
) -> RightSide:
    def flat(t: Array, z: Array, args: Any) -> Array:
        y = parted(layout, z)
        return returned(function(t, y) if args is None else function(t, y, args))

    return right_side_of(flat, args, jnp.zeros((), layout.dtype), z)


def _checked_drift(found: Any, layout: Layout) -> Array:
    leaves, tree = jax.tree.flatten(found)
    if tree != layout.tree:
        wanted = "an array" if layout.is_array else f"a pytree like y0, {layout.tree}"
        raise TypeError(f"{OWNER}(sde.drift): needs {wanted}; it returned {type(found).__name__}.")
    arrays = [_of_dtype(leaf, "sde.drift", layout) for leaf in leaves]
    for part, shape in zip(arrays, layout.shapes, strict=True):
        if part.shape != shape:
            raise ValueError(
                f"{OWNER}(sde.drift): needs the state's shape {shape}; it returned {part.shape}; return an array of "
                "that shape."
            )
    return joined(layout, jax.tree.unflatten(tree, arrays))


def _checked_diffusion(noise_type: str, found: Any, layout: Layout) -> Array:
    if layout.is_array:
        if not jax.tree_util.treedef_is_leaf(jax.tree.structure(found)):
            raise TypeError(f"{OWNER}(sde.diffusion): needs an array; it returned {type(found).__name__}.")
        value = _of_dtype(found, "sde.diffusion", layout)
        fitting_shape(noise_type, value.shape, layout.shapes[0])
        return value
    leaves, tree = jax.tree.flatten(found)
    is_alike = tree == layout.tree
    arrays = [_of_dtype(leaf, "sde.diffusion", layout) for leaf in leaves] if is_alike else []
    returned = [tuple(part.shape) for part in arrays] if is_alike else type(found).__name__
    joined_shape(noise_type, returned, list(layout.shapes))
    return joined(layout, jax.tree.unflatten(tree, arrays))


def _of_dtype(leaf: Any, argument: str, layout: Layout) -> Array:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int):
        raise TypeError(f"{OWNER}({argument}): needs an array; it returned {type(leaf).__name__}.")
    part = jnp.asarray(leaf)
    if part.dtype != layout.dtype and not part.weak_type:
        raise TypeError(
            f"{OWNER}({argument}): needs the state's dtype {layout.dtype}; it returned {part.dtype}; convert it there, "
            "or pass y0 in that dtype."
        )
    return part.astype(layout.dtype)


def checked_structure(coefficients: Coefficients, z0: Array, needs_diagonal: bool) -> Array:
    """Return the state at the start, or raise unless the diffusion depends on the state as its noise type says.

    Of an additive one it is seen while it is traced. Of a diagonal one it takes numbers: the start, a state nearby, and
    that state at the end; where they are traced, `jax.experimental.checkify` raises.

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
    """Return whether the Jacobian of the diffusion is not diagonal."""
    g, pull = jax.vjp(lambda z: c.diffusion(n, z), y)
    direction = beside(jnp.cos(jnp.arange(1.0, g.size + 1, dtype=g.dtype)).reshape(g.shape), g)
    (found,), (alone,) = pull(direction), pull(jnp.ones_like(g))
    size = _ROUNDING * jnp.finfo(g.dtype).eps * jnp.abs(alone).max()
    return (jnp.abs(found - direction * alone) > size).any()
