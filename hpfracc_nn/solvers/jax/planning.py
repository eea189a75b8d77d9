"""What the manager is asked when a solve is traced."""

from __future__ import annotations

import math

from hpfracc_nn.fractional.jax.arrays import assumed
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.selection import Workload
from hpfracc_nn.solvers.history import Exponentials
from hpfracc_nn.solvers.jax import kernels  # noqa: F401  registered on import
from hpfracc_nn.solvers.jax.layout import Layout


def workload_of(op: str, layout: Layout, n_steps: int, nodes: Nodes | None) -> Workload:
    """Return what is asked of the manager: gradients may be wanted of whatever is traced.

    Args:
        op: The operation of a history.
        layout: Of the states.
        n_steps: How many.
        nodes: Of the exponentials that may stand for the past, or None.
    """
    states = n_steps if op == Exponentials.op else 0
    return Workload(
        op=op,
        framework="jax",
        device=device_name(),
        dtype=layout.dtype.name,
        rows=assumed(layout.orders),
        n=n_steps,
        width=math.prod(map(assumed, layout.shape[1:])),
        channels=assumed(layout.orders),
        exponentials=states if nodes is None else nodes.states,
        needs_gradient=True,
        threads=JaxProbe().threads(),
    )
