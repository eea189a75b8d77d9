"""Drift f and diffusion g of a stochastic equation as traced functions, checked when a solve begins.

Each is traced once. Arrays that f or g reads besides t and y, from `args`, a closure or a module, become arguments, so
that JAX differentiates in all of these arrays.

Shapes: a state is an array [a, *rest], as in `state`; m channels of noise drive the state. A general or scalar g is
[*shape, m], `shape` that of the user's state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
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
    checked_array,
    is_traced,
    traced,
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
        layout: How the user's state is laid out as [a, *rest].
        f: The drift, traced.
        g: The diffusion, traced; returns an array in the user's shape, or for a pytree a vector of all its entries.
    """

    noise_type: str
    dt: float
    times: np.ndarray
    layout: Layout
    f: RightSide = field(repr=False)
    g: RightSide = field(repr=False)
    _shift: float = 0.0

    @property
    def step(self) -> float:
        """The length of a step, `dt`."""
        return self.dt

    @property
    def is_elementwise(self) -> bool:
        """Whether g has a state's shape and is multiplied with the noise entry by entry; otherwise g is [*shape, m]."""
        return not self.layout.is_array or len(self.g.shape) == len(self.layout.shapes[0])

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """The shape of the noise of a step: that of g if g is elementwise, else [*batch, m]."""
        return self.g.shape if self.is_elementwise else (*self.g.shape[:-2], self.g.shape[-1])

    @property
    def read(self) -> tuple[Array, ...]:
        """The arrays that f and g read besides t and y: those of f, then those of g."""
        return (*self.f.read, *self.g.read)

    def reading(self, read: tuple[Array, ...]) -> Coefficients:
        """Return coefficients whose f and g read the arrays `read` in place of their own, in the order of `read`."""
        count = len(self.f.read)
        return replace(self, f=self.f.reading(read[:count]), g=self.g.reading(read[count:]))

    def drift(self, n: Any, y: Array) -> Array:
        """Return the drift f at step n and state y, [a, *rest]."""
        return self.f(self._time(n), y)

    def diffusion(self, n: Any, y: Array) -> Array:
        """Return the diffusion g at step n and state y: [a, *rest] if g is elementwise, else [*shape, m]."""
        g = self.g(self._time(n), y)
        return self.layout.joined(g) if self.is_elementwise else g

    def _time(self, n: Any) -> Array:
        t = jnp.asarray(self.times)[n]
        return t + self._shift * self.dt if self._shift else t

    def with_slope(self, n: Any, y: Array, factor: Array) -> tuple[Array, Array]:
        """Return a diagonal diffusion g at step n and state y, and g g' * factor with g' = dg/dy; [a, *rest] both."""
        g, slope = jax.linearize(lambda z: self.diffusion(n, z), y)
        return g, slope(g * factor)

    def applied(self, g: Array, noise: Array) -> Array:
        """Return the product of g, a value of the diffusion, with the noise of a step: an array [a, *rest]."""
        if self.is_elementwise:
            return g * noise
        if self.noise_type == "scalar":
            return self.layout.joined(g[..., 0] * noise)
        found = jnp.einsum("...dm,...m->...d", g, noise, precision=jax.lax.Precision.HIGHEST)
        return self.layout.joined(found)

    def shifted(self, part: float) -> Coefficients:
        """Return coefficients whose f and g are evaluated later, by the fraction `part` of a step, such as 0.5."""
        return replace(self, _shift=part)

    @property
    def reads_state(self) -> bool:
        """Whether g is computed from y, even if its derivative is 0, as for a threshold or for rounding."""
        jaxpr = self.g.jaxpr
        # An equation that only prints y has no outputs, and does not count.
        computing = jaxpr.replace(eqns=[each for each in jaxpr.eqns if each.outvars])
        _, reads = partial_eval.dce_jaxpr(computing, [True] * len(jaxpr.outvars))
        return bool(reads[1])


def coefficients_of(sde: Any, args: Any, layout: Layout, times: np.ndarray, z: Array) -> Coefficients:
    """Return drift and diffusion of the user's equation, traced and checked.

    Args:
        sde: The user's equation, with drift, diffusion and noise_type.
        args: A pytree that drift and diffusion get besides t and y, or None.
        layout: How the user's state is laid out.
        times: The times of all steps, [n_steps + 1].
        z: A state [a, *rest], for whose shape and dtype drift and diffusion are traced.

    Raises:
        TypeError: Drift or diffusion return no arrays of the state's dtype.
        ValueError: Drift or diffusion return another shape than the state and the noise type demand.
    """
    t = jnp.zeros((), layout.dtype)
    f = traced(f"{OWNER}(sde.drift)", sde.drift, args, layout, t, z)
    g = traced(f"{OWNER}(sde.diffusion)", sde.diffusion, args, layout, t, z, partial(_diffused, sde.noise_type))
    dt = float(times[-1] - times[0]) / (times.size - 1)
    return Coefficients(sde.noise_type, dt, times.astype(layout.dtype), layout, f, g)


def _diffused(noise_type: str, what: str, found: Any, layout: Layout) -> Array:
    """Return `found`, the result of the user's diffusion, as one array; a pytree is joined into a vector.

    Raises:
        TypeError: A state that is one array has a diffusion that is none, or the dtype is not the state's.
        ValueError: The shape does not fit the state and the noise type.
    """
    leaves, tree = jax.tree.flatten(found)
    if not layout.is_array:
        is_alike = tree == layout.tree
        arrays = [checked_array(what, leaf, layout) for leaf in leaves] if is_alike else []
        returned = [tuple(part.shape) for part in arrays] if is_alike else type(found).__name__
        joined_shape(noise_type, returned, list(layout.shapes))
        return layout.joined(jax.tree.unflatten(tree, arrays))[0]
    if not jax.tree_util.treedef_is_leaf(tree):
        raise TypeError(f"{what}: needs an array; it returned {type(found).__name__}.")
    value = checked_array(what, found, layout)
    fitting_shape(noise_type, value.shape, layout.shapes[0])
    return value


def checked_structure(coefficients: Coefficients, z0: Array, needs_diagonal: bool) -> Array:
    """Return the state at the start, or raise unless the diffusion depends on the state as its noise type says.

    Whether an additive diffusion reads the state is seen in its traced program. The Jacobian of a diagonal diffusion is
    checked with numbers: at the first time for the state at the start and a state nearby, and at the last time for the
    state nearby. If these numbers are traced, `jax.experimental.checkify` raises.

    Raises:
        ValueError: An additive diffusion depends on y, or a diagonal diffusion depends on other entries of y although
            the scheme needs it diagonal.
    """
    c = coefficients
    if c.noise_type == "additive" and c.reads_state:
        raise ValueError(additive_message("as it is written"))
    if not (needs_diagonal and c.noise_type == "diagonal"):
        return z0
    wave = 1.5 + 0.5 * jnp.cos(jnp.arange(1.0, z0.size + 1, dtype=z0.dtype))
    nearby = z0 + NEARBY * wave.reshape(z0.shape) * (1 + jnp.abs(z0))
    last = c.times.size - 1
    wrong = jnp.stack([_is_coupled(c, n, y) for n, y in ((0, z0), (0, nearby), (last, nearby))])
    if is_traced(wrong):
        return checked(z0, ~wrong.any(), diagonal_message("some time"))
    if bool(wrong.any()):
        n = (0, 0, last)[int(jnp.argmax(wrong))]
        raise ValueError(diagonal_message(f"t={float(c.times[n]):g}"))
    return z0


def _is_coupled(c: Coefficients, n: int, y: Array) -> Array:
    """Return whether the Jacobian J of an elementwise diffusion at step n and state y is not diagonal, a scalar.

    Two products with the transpose of J show this up to rounding: `J^T d` and `d * J^T 1` agree for a diagonal J.
    """
    g, pull = jax.vjp(lambda z: c.diffusion(n, z), y)
    direction = beside(jnp.cos(jnp.arange(1.0, g.size + 1, dtype=g.dtype)).reshape(g.shape), g)
    (found,), (alone,) = pull(direction), pull(jnp.ones_like(g))
    size = _ROUNDING * jnp.finfo(g.dtype).eps * jnp.abs(alone).max()
    return (jnp.abs(found - direction * alone) > size).any()
