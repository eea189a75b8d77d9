"""Questions to the BackendManager about JAX arrays, without data; the kernels are loaded with this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn.fractional import operator, workloads
from hpfracc_nn.fractional.definitions import Definition, Multiplier
from hpfracc_nn.fractional.jax import operator as room  # noqa: F401  its kernels and its probe are registered
from hpfracc_nn.fractional.jax.probe import device_name
from hpfracc_nn.selection import BackendManager, Plan, Workload


def workload(
    shape: Sequence[int],
    definition: Definition | Multiplier | None = None,
    *,
    dim: int | Sequence[int] = -1,
    dtype: str = "float32",
    needs_gradient: bool = True,
    learns_weights: bool = False,
) -> Workload:
    """Return what an operator on a JAX array of this shape asks for; see `hpfracc_nn.workload`.

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
