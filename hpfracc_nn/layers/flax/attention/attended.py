"""The operation `attention` on JAX's arrays: its plan is made when a call is traced, from shapes and dtypes."""

from __future__ import annotations

from functools import partial

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import assumed, at_least_single, fits
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.layers.attention import OP
from hpfracc_nn.layers.flax import kernels  # noqa: F401  registered on import
from hpfracc_nn.layers.flax.attention.formula import Attention, Given
from hpfracc_nn.layers.flax.attention.parts import Averages, by_items
from hpfracc_nn.selection import BackendManager, Kernel, Plan, Work, Workload, carried_out, given_manager


def attended(attention: Attention, given: Given, manager: BackendManager | None) -> Averages:
    """Return averages [batch, heads, queries, values] and weights; half precision is computed in float32.

    A kernel's `run(attention, given, items)` is a pure function that JAX differentiates; it gets the numbers of the
    items of the batch too.
    """
    dtype = given.q.dtype
    wide = at_least_single(dtype)
    if wide != dtype:
        cast = given._replace(**{name: getattr(given, name).astype(wide) for name in ("q", "k", "v")})
        cast = cast._replace(bias=None if given.bias is None else given.bias.astype(wide))
        y, weights = attended(attention, cast, manager)
        return y.astype(dtype), None if weights is None else weights.astype(dtype)
    if 0 in given.q.shape or 0 in given.k.shape:
        return attention.formula(given, jnp.arange(given.q.shape[2]), jnp.arange(given.q.shape[0]))
    site = given_manager("FractionalAttention", manager).shared_site(OP, "jax", "FractionalAttention")
    facts = (given.q.shape, given.k.shape[2], str(dtype), attention.needs_weights)
    plan = site.pick_traced(facts, lambda: workload(*facts))
    found: Averages = carried_out(_TRACED, site, plan, attention, given)
    return found


def workload(shape: tuple[int, ...], keys: int, dtype: str, needs_weights: bool) -> Workload:
    """Return what a call asks for: `rows` heads of `n` queries with `width` features, `exponentials` keys."""
    batch, heads, queries, features = shape
    return Workload(
        OP,
        "jax",
        device=device_name(),
        dtype=dtype,
        rows=assumed(batch) * heads,
        n=queries,
        width=features,
        channels=heads,
        exponentials=keys,
        needs_gradient=True,  # of whatever is traced one may be wanted
        learns_weights=needs_weights,
        threads=JaxProbe().threads(),
    )


def _run(plan: Plan, attention: Attention, given: Given) -> Averages:
    plan.kernel.calls["run"] += 1
    found: Averages = _computed(attention, plan.kernel, plan.chunk, given)
    return found


@partial(jax.jit, static_argnames=("attention", "kernel", "rows"))
def _computed(attention: Attention, kernel: Kernel, rows: int | None, given: Given) -> Averages:
    """The kernel's result, of so many heads at a time where memory is short."""
    return unplaced(partial(_by, attention, kernel, rows), given)  # type: ignore[no-any-return]


def _by(attention: Attention, kernel: Kernel, rows: int | None, given: Given) -> Averages:
    items = jnp.arange(given.q.shape[0])
    if rows is None or fits(rows // given.q.shape[1], given.q.shape[0]):
        return kernel.run(attention, given, items)  # type: ignore[no-any-return]
    return by_items(given, items, rows // given.q.shape[1], lambda one, item: kernel.run(attention, one, item))


_TRACED = Work(_run, is_timed=False)  # what is traced tells no time, and what is computed is waited for by nobody
