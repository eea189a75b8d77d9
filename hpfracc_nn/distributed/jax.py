"""Operators on series whose time axis lies over a named axis of a mesh, for JAX: inside of `jax.shard_map`.

    import hpfracc_nn.jax as fjx

    fjx.distributed.derivative(x, fjx.Caputo(0.6), dt=0.01, axis_name="time")

`fractional/jax/slices.py` says what is exchanged and computed. Inside of `jax.shard_map` an array does not show which
axis was cut, so that an ordinary call takes a slice for a whole series; here `axis_name` names the mesh axis.
"""

from __future__ import annotations

from collections.abc import Hashable

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Alpha, Definition, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.definitions.definition import check_definition
from hpfracc_nn.fractional.jax import slices
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy
from hpfracc_nn.fractional.jax.operator import apply
from hpfracc_nn.fractional.operator import integral_of
from hpfracc_nn.selection import BackendManager


def derivative(
    x: Array,
    definition: Definition,
    *,
    axis_name: Hashable,
    dt: float = 1.0,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Array:
    """Return this device's slice of the fractional derivative of a series that lies over a mesh axis.

    The slices, joined along `dim` in the order of the axis, are the series, and have the same length, as
    `jax.shard_map` cuts it. The result is the slice of what `derivative` returns for the whole: to 1e-12 of its largest
    value in float64 up to 8192 samples, to 1e-11 above, and in float32 to its rounding. What is sent does not depend on
    the length: about 80 numbers for each signal, once in the forward and once in the backward pass.

    Gradients are JAX's own: of an alpha that is the same on all devices the sum over them, complete on each.

    Args:
        x: This device's slice, [..., n, ...]; real, floating. Slices of fewer than 20 samples are gathered.
        definition: As in `derivative`, and equal on all devices: one whose weights are a sum of decaying exponentials,
            which power laws have where all orders lie on one side of 1.
        axis_name: The mesh axis over which time lies, or a tuple of such.
        dt: Spacing of the samples, in the caller's time unit; positive.
        dim: The time axis.
        manager: Who chooses the kernel where slices are gathered; None is the process-wide BackendManager.

    Returns:
        Same shape and dtype as `x`; units of x / time**alpha.

    Raises:
        TypeError: `x` is no real floating array, or `definition` is none.
        ValueError: `dt` is not positive, `dim` no axis, the definition has no such exponentials, or there is no mesh
            axis of this name, or x does not lie over it.

    Source: Sun et al., LASP-2 (2025), arXiv:2502.07563, for one all-gather of states along the sequence.

    Examples:
        >>> mesh = jax.make_mesh((1,), ("time",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> of_slice = lambda x: fjx.distributed.derivative(
        ...     x, fjx.Caputo(0.6), axis_name="time"
        ... )
        >>> spec = jax.P(None, "time")
        >>> sliced = jax.shard_map(of_slice, mesh=mesh, in_specs=spec, out_specs=spec)
        >>> jax.jit(sliced)(jnp.ones((8, 100))).shape
        (8, 100)
    """
    owner = "distributed.derivative"
    check_definition(owner, definition)
    return applied(owner, x, definition, axis_name, dt, dim, manager)


def integral(
    x: Array,
    alpha: Alpha | RiemannLiouvilleIntegral,
    *,
    axis_name: Hashable,
    dt: float = 1.0,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Array:
    """Return this device's slice of the Riemann-Liouville integral of a series that lies over a mesh axis.

    Args:
        x: As in `derivative`, where more is said.
        alpha: The order, in [0, 2], or a RiemannLiouvilleIntegral.
        axis_name: As in `derivative`.
        dt: As in `derivative`.
        dim: As in `derivative`.
        manager: As in `derivative`.

    Returns:
        Same shape and dtype as `x`; units of x * time**alpha.

    Raises:
        TypeError: As in `derivative`; or `alpha` is a definition that is no integral.
        ValueError: As in `derivative`; or alpha is outside [0, 2].

    Source: that of `fractional.integral` and of `derivative`.

    Examples:
        >>> mesh = jax.make_mesh((1,), ("time",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> of_slice = lambda x: fjx.distributed.integral(x, 0.5, axis_name="time")
        >>> spec = jax.P(None, "time")
        >>> sliced = jax.shard_map(of_slice, mesh=mesh, in_specs=spec, out_specs=spec)
        >>> jax.jit(sliced)(jnp.ones((8, 100))).shape
        (8, 100)
    """
    owner = "distributed.integral"
    return applied(owner, x, integral_of(owner, alpha), axis_name, dt, dim, manager)


def applied(
    owner: str,
    x: Array,
    definition: Definition,
    axis_name: Hashable,
    dt: float,
    dim: int,
    manager: BackendManager | None,
) -> Array:
    """Return this device's slice of the operator's result, for a series that lies over the mesh axis `axis_name`."""
    x, dt = of_numpy(x), errors.positive_step(owner, dt)
    computed_in(owner, x, definition)
    axis = errors.axis(owner, dim, x.ndim)

    def whole(series: Array, left: Definition, axis: int) -> Array:
        return apply(owner, series, left, dt, axis, manager)

    return slices.applied(owner, x, definition, dt, axis, axis_name, whole)
