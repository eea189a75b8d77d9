"""Plans for JAX arrays, without data, and a calibration that compiles and times every kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import operator, workloads
from hpfracc_nn.fractional.definitions import Caputo, Definition, FourierMultiplier, family
from hpfracc_nn.fractional.dispatch import shape_of
from hpfracc_nn.fractional.jax.arrays import computed_in
from hpfracc_nn.fractional.jax.operator import Call, computed
from hpfracc_nn.fractional.jax.probe import device_name
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.selection import BackendManager, Direction, Measurement, Plan, Workload, given_manager


def workload(
    shape: Sequence[int],
    definition: Definition | FourierMultiplier | None = None,
    *,
    dim: int = -1,
    dtype: str = "float32",
    needs_gradient: bool = True,
    learns_weights: bool = False,
) -> Workload:
    """Return the workload of an operator on a JAX array of this shape; see `hpfracc_nn.workload`.

    A traced call cannot know whether its gradient will be taken, and plans for it.

    Args:
        shape: Of the data, [..., n, ...].
        definition: As there.
        dim: As there.
        dtype: As there.
        needs_gradient: As there; here it is wanted unless it is said not to be.
        learns_weights: As there.

    Raises:
        ValueError: As there.

    Examples:
        >>> print(BackendManager().explain(workload((256, 1024), Caputo(0.7))))
    """
    return workloads.workload(
        shape,
        definition,
        framework="jax",
        dim=dim,
        dtype=dtype,
        device=device_name(),
        needs_gradient=needs_gradient,
        learns_weights=learns_weights,
    )


def choose(
    op: str,
    shape: Sequence[int],
    *,
    definition: Definition | None = None,
    manager: BackendManager | None = None,
    **facts: Any,
) -> Plan:
    """Return the plan for a JAX array of this shape, without the data; see `hpfracc_nn.choose`.

    Args:
        op: The operation.
        shape: Of the data, [..., n, ...].
        definition: The operator that "toeplitz" is for; None is Caputo(0.5).
        manager: Who is asked; None is the process-wide BackendManager.
        facts: What else `hpfracc_nn.choose` takes.

    Raises:
        LookupError: No kernel accepts the workload.

    Examples:
        >>> choose("toeplitz", (32, 8, 1024), definition=Caputo(0.7)).algorithm
        'chunked_scan'
    """
    facts = {"needs_gradient": True, "device": device_name(), **facts}
    return operator.choose(op, shape, framework="jax", definition=definition, manager=manager, **facts)


_LEAST = 0.02  # seconds, for which each kernel runs in each direction


def calibrate(
    shape: Sequence[int],
    definition: Definition | None = None,
    *,
    dim: int = -1,
    dtype: Any = "float32",
    learns_alpha: bool = False,
    manager: BackendManager | None = None,
) -> list[Measurement]:
    """Time every kernel on data of this shape, forward and backward, and return what was measured.

    Calls of JAX are traced, and tell the manager no times: without a calibration its plans follow from an estimate, or
    from what was saved by a calibration before. What was traced already keeps its kernel. A calibration takes about a
    second for each kernel, most of it compilation.

    Args:
        shape: Of the data, [..., n, ...].
        definition: The operator, with a side "left"; None is Caputo(0.5).
        dim: The time axis.
        dtype: Of the data.
        learns_alpha: Whether plans are for orders that are arrays; the gradient in them is timed too.
        manager: Who learns; None is the process-wide BackendManager.

    Returns:
        The last measurement of each kernel in each direction, the fastest first.

    Raises:
        TypeError: `definition` is none with memory, or `dtype` is none that operators take.
        ValueError: `dim` is no axis of the shape, alpha does not broadcast to its others, there are no samples, the
            side is not "left", or 64 bit types are asked for and not enabled.

    Examples:
        >>> for measured in calibrate((8, 256), manager=BackendManager()):
        ...     print(measured.kernel, measured.direction, measured.seconds)
    """
    definition = Caputo(0.5) if definition is None else definition
    manager = given_manager("calibrate", manager)
    shape = tuple(shape)
    axis = errors.axis("calibrate", dim, len(shape))
    _check(shape, definition, dtype)
    layout = layout_of("calibrate", shape, axis, shape_of(definition.alpha))
    is_traced = learns_alpha or not definition.is_fixed
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape), dtype)
    computed_as = computed_in("calibrate", x, definition)
    call = Call(family(definition) if is_traced else definition, is_traced, 1.0, layout, computed_as)
    alpha = jnp.full(shape_of(definition.alpha), sum(definition.interval) / 2, x.dtype) if is_traced else None
    workload = call.workload()
    found = []
    for name in manager.predict(workload):
        plan = manager.plan_with(name, "measured", workload)
        found += _measured(manager, plan, call, x, alpha)
    manager.reconsider()
    return sorted(found, key=lambda measured: (measured.direction, measured.seconds))


def _check(shape: tuple[int, ...], definition: Definition, dtype: Any) -> None:
    if not isinstance(definition, Definition):
        raise TypeError(f"calibrate(definition={definition!r}): needs a definition with memory, such as Caputo(0.5).")
    if definition.side != "left":
        raise ValueError(
            f"calibrate(side={definition.side!r}): needs side='left', which the others are computed by; both sides are "
            "twice as many rows."
        )
    if 0 in shape:
        raise ValueError(f"calibrate(shape={shape}): needs at least one sample of each; pass the shape of your data.")
    if jax.dtypes.canonicalize_dtype(dtype) != jnp.dtype(dtype):
        raise ValueError(
            f"calibrate(dtype={jnp.dtype(dtype).name!r}): needs 64 bit types to be enabled; call "
            "jax.config.update('jax_enable_x64', True) first."
        )


def _measured(
    manager: BackendManager, plan: Plan, call: Call, x: jax.Array, alpha: jax.Array | None
) -> list[Measurement]:
    def forward(x: jax.Array, alpha: jax.Array | None) -> jax.Array:
        return computed(call, plan.kernel, plan.workload, plan.chunk, x, alpha)

    def backward(x: jax.Array, alpha: jax.Array | None) -> Any:
        _, transposed = jax.vjp(forward, x, alpha)
        return transposed(x)

    both = _seconds(jax.jit(lambda x, alpha: (forward(x, alpha), backward(x, alpha))), x, alpha)
    alone = _seconds(jax.jit(forward), x, alpha)
    directions: dict[Direction, list[float]] = {
        "forward": alone,
        "backward": [max(0.0, each - min(alone)) for each in both],
    }
    for direction, times in directions.items():
        for seconds in times:
            manager.record(plan, seconds, direction)
    return [
        Measurement(plan.workload, plan.kernel.name, float(np.median(times)), direction)
        for direction, times in directions.items()
    ]


def _seconds(function: Callable[..., Any], *given: Any) -> list[float]:
    """Return the times, in seconds, of at least five calls of a function, after an untimed call that compiles it."""
    jax.block_until_ready(function(*given))
    times: list[float] = []
    while sum(times) < _LEAST or len(times) < 5:
        start = time.perf_counter()
        jax.block_until_ready(function(*given))
        times.append(time.perf_counter() - start)
    return times
