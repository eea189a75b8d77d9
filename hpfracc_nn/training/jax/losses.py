"""Losses for paths [time, batch, state], as solvers return them: pure functions of arrays.

`trajectory_loss` compares path with path. The others compare distributions, and ask for a batch: what a stochastic
model draws and what was observed are different paths even where the model is right. Moments at each time do not see how
rough a path is, the variogram sees little else, and the energy score sees everything, with more noise. Half precision
is computed in float32, and the loss has the paths' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.training.path_checks import (
    check_batches,
    check_lags,
    check_mask,
    check_observed,
    check_orders,
    check_real,
)


def trajectory_loss(ys: Array, observed: Array, *, mask: Array | None = None) -> Array:
    """Return the mean square of the differences of paths and observations, in the square of their units.

    Args:
        ys: Paths, [time, batch, state].
        observed: Observations at the same times; broadcasts to `ys`. Entries that the mask leaves out may be anything,
            NaN too.
        mask: True for entries that were observed; broadcasts to `ys`. If no entry is, the result is NaN.

    Raises:
        ValueError: Shapes do not fit, or the mask is not boolean.
        TypeError: The paths are complex.

    Examples:
        >>> ys, observed = jnp.zeros((3, 1, 1)), jnp.array([1.0, 2.0, jnp.nan]).reshape(3, 1, 1)
        >>> trajectory_loss(ys, observed, mask=jnp.isfinite(observed))  # (1 + 4) / 2
        Array(2.5, dtype=float32)
        >>> jax.grad(trajectory_loss)(ys, observed, mask=jnp.isfinite(observed)).ravel()
        Array([-1., -2.,  0.], dtype=float32)
    """
    owner = "trajectory_loss"
    check_observed(owner, ys, observed)
    ys, observed, dtype = _wide(owner, ys, observed)
    if mask is None:
        return jnp.square(ys - observed).mean().astype(dtype)
    check_mask(owner, ys, mask, mask.dtype == bool)
    seen = jnp.broadcast_to(mask, ys.shape)
    difference = jnp.where(seen, ys - jnp.where(seen, observed, 0.0), 0.0)
    return (jnp.square(difference).sum() / seen.sum(dtype=difference.dtype)).astype(dtype)


def moment_loss(ys: Array, observed: Array, *, orders: int = 2) -> Array:
    """Return the mean square of the differences between moments, at each time and for each entry of the state.

    All are in units of the observed standard deviation s: means and deviations are divided by s, and from order 3 on
    the central moments by s**order. Times at which observed paths do not vary, as at the start, count with their mean
    alone.

    Args:
        ys: Paths, [time, batch, state].
        observed: Observed paths, [time, batch, state], in a batch of any size.
        orders: How many moments are compared, from 1 to 4.

    Raises:
        ValueError: Shapes do not fit, a batch is smaller than two, or `orders` is out of range.
        TypeError: The paths are complex.

    Examples:
        >>> observed = jnp.array([-1.0, 1.0]).reshape(1, 2, 1)
        >>> moment_loss(2 * observed, observed).round(4)  # one deviation too wide
        Array(1., dtype=float32)
    """
    check_batches("moment_loss", ys, observed)
    check_orders("moment_loss", orders)
    ys, observed, dtype = _wide("moment_loss", ys, observed)
    found, wanted = ys.mean(1), observed.mean(1)
    centred, others = ys - found[:, None], observed - wanted[:, None]
    # A variance of equal numbers is seldom 0, as the mean is rounded. A sharded batch does not have observed[:, :1].
    varies = observed.max(1) != observed.min(1)
    unit = jnp.where(varies, _deviation(others), 1.0)
    total = jnp.square((found - wanted) / unit).mean()
    if orders > 1:
        total = total + _squares(_deviation(centred), _deviation(others), unit, varies)
    for order in range(3, orders + 1):
        total = total + _squares((centred**order).mean(1), (others**order).mean(1), unit**order, varies)
    return total.astype(dtype)


def variogram_loss(ys: Array, observed: Array, *, lags: Sequence[int] = (1, 2, 4, 8)) -> Array:
    """Return the mean square of the differences between the logarithms of variograms.

    The variogram is the mean over batch and time of the squared increments over a lag, which grow like
    lag**(2 hurst): the loss sees Hurst index and scale, whatever the units.

    Args:
        ys: Paths at equally spaced times, [time, batch, state].
        observed: Observed paths at these times, [time, batch, state], in a batch of any size.
        lags: The lags in steps, each smaller than the number of times.

    Raises:
        ValueError: Shapes do not fit, or a lag is out of range.
        TypeError: The paths are complex.

    Source: Gatheral, Jaisson & Rosenbaum, Quant. Finance 18 (2018) 933, section 2.1, for the growth.

    Examples:
        >>> x = jnp.arange(10.0).reshape(10, 1, 1)
        >>> variogram_loss(2 * x, x).round(4)  # log(4)**2
        Array(1.9218, dtype=float32)
    """
    check_batches("variogram_loss", ys, observed, least=1)
    check_lags("variogram_loss", lags, ys)
    ys, observed, dtype = _wide("variogram_loss", ys, observed)
    ratios = [jnp.log(_variogram(ys, lag)) - jnp.log(_variogram(observed, lag)) for lag in lags]
    return jnp.square(jnp.stack(ratios)).mean().astype(dtype)


def energy_score(ys: Array, observed: Array) -> Array:
    """Return E |X - y| - E |X - X'| / 2, averaged over observed paths y: a proper score of a distribution of paths.

    X and X' are two paths of `ys`, and the distance is Euclidean over all times and entries, divided by the root of
    their number. The score's mean is least for the distribution that the observations come from. Time grows like batch
    times batch.

    Args:
        ys: Paths of the model, [time, batch, state].
        observed: Observed paths, [time, batch, state], in a batch of any size, even 1.

    Raises:
        ValueError: Shapes do not fit, or there are fewer than two paths of the model.
        TypeError: The paths are complex.

    Source: Gneiting & Raftery, J. Amer. Stat. Assoc. 102 (2007) 359, section 4.2.

    Examples:
        >>> ys = jnp.array([0.0, 1.0, 3.0]).reshape(1, 3, 1)
        >>> energy_score(ys, jnp.full((1, 1, 1), 3.0)).round(4)  # 5 / 3 - 2 / 2
        Array(0.6667, dtype=float32)
    """
    check_batches("energy_score", ys, observed, least_observed=1)
    ys, observed, dtype = _wide("energy_score", ys, observed)
    size = float(ys.shape[0] * ys.shape[2]) ** 0.5
    paths, others = (jnp.swapaxes(_whole(x), 0, 1).reshape(x.shape[1], -1) / size for x in (ys, observed))
    among = _distance(paths, paths) * (len(paths) / (len(paths) - 1))  # without the pairs of a path with itself
    return (_distance(paths, others) - among / 2).astype(dtype)


def _wide(owner: str, ys: Array, observed: Array) -> tuple[Array, Array, Any]:
    """Return both arrays of paths in the dtype to compute in, at least single precision, and the dtype of the loss.

    Complex paths raise TypeError, with the name of the public function `owner`.
    """
    for name, paths in (("ys", ys), ("observed", observed)):
        check_real(owner, name, paths.dtype, not jnp.iscomplexobj(paths))
    dtype = jnp.result_type(ys, observed, 0.0)
    if jnp.finfo(dtype).bits < 32:
        return ys.astype(jnp.float32), observed.astype(jnp.float32), dtype
    return ys, observed, dtype


def _whole(paths: Array) -> Array:
    """Return the paths, replicated over devices if an explicit mesh has split them: `lax.map` takes no split axis."""
    mesh = jax.typeof(paths).sharding.mesh
    if mesh.empty or mesh.are_all_axes_auto or mesh.are_all_axes_manual:
        return paths
    return jax.sharding.reshard(paths, NamedSharding(mesh, PartitionSpec()))


@jax.jit
def _distance(some: Array, others: Array) -> Array:
    """Return the mean distance between a row of `some`, [m, d], and a row of `others`, [k, d], over all pairs.

    Rows are taken one after another, and differences are not kept. Matrix products would lose the digits of small
    distances. The function is compiled once for each shape: otherwise `lax.map` would compile its closure again at each
    call outside of jit.
    """

    @jax.checkpoint
    def of_row(row: Array) -> Array:
        return _root(jnp.square(row[None] - others).sum(-1)).mean()

    return jax.lax.map(of_row, some).mean()


def _deviation(centred: Array) -> Array:
    return _root(jnp.square(centred).sum(1) / (centred.shape[1] - 1))


def _root(squares: Array) -> Array:
    """Return the square roots of numbers >= 0, with a gradient of 0 instead of infinity at 0."""
    varies = squares > 0
    return jnp.where(varies, jnp.sqrt(jnp.where(varies, squares, 1.0)), 0.0)


def _squares(found: Array, wanted: Array, unit: Array, varies: Array) -> Array:
    return jnp.square(jnp.where(varies, (found - wanted) / unit, 0.0)).mean()


def _variogram(paths: Array, lag: int) -> Array:
    return jnp.square(paths[lag:] - paths[:-lag]).mean((0, 1))
