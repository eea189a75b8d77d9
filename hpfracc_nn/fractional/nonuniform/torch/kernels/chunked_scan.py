"""The integral over cells by products inside chunks and states between them: O(n Q) time and memory."""

from __future__ import annotations

from torch import Tensor

from hpfracc_nn.fractional.nonuniform import costs
from hpfracc_nn.fractional.nonuniform.torch.forms import Form
from hpfracc_nn.fractional.nonuniform.torch.weights import CellWeights
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(weights: CellWeights, workload: Workload) -> Form:
    return weights.chunks()


def run(form: Form, z: Tensor) -> Tensor:
    return form.product(z)


def adjoint(form: Form, g: Tensor) -> Tensor:
    return form.adjoint(g)


register(
    Kernel(
        op=costs.OP,
        framework="torch",
        backend="torch",
        algorithm="chunked_scan",
        run=run,
        adjoint=adjoint,
        prepare=prepare,
        cost=costs.chunks,
        refuses=costs.refuses_chunks,
        saves=costs.saves,
    )
)
