"""The integral over cells by products inside chunks and states between them: O(n Q) time and memory."""

from __future__ import annotations

from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.fractional.nonuniform import costs
from hpfracc_nn.fractional.nonuniform.jax.forms import Form
from hpfracc_nn.fractional.nonuniform.jax.weights import CellWeights
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(weights: CellWeights, workload: Workload) -> Form:
    return weights.chunks()


def run(form: Form, z: Array) -> Array:
    return form.product(z)


def adjoint(form: Form, g: Array) -> Array:
    return form.adjoint(g)


register(
    Kernel(
        op=costs.OP,
        framework="jax",
        backend="xla",
        algorithm="chunked_scan",
        run=run,
        adjoint=adjoint,
        prepare=prepare,
        cost=costs.chunks,
        refuses=costs.refuses_chunks,
    )
)
