"""The integral over cells by products inside chunks and states between them: O(n Q) time and memory."""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.nonuniform import costs
from hpfracc_nn.fractional.nonuniform.numpy.forms import Form
from hpfracc_nn.fractional.nonuniform.numpy.weights import CellWeights
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(weights: CellWeights, workload: Workload) -> Form:
    return weights.chunks()


def run(form: Form, z: np.ndarray) -> np.ndarray:
    return form.product(z)


def adjoint(form: Form, g: np.ndarray) -> np.ndarray:
    return form.adjoint(g)


register(
    Kernel(
        op=costs.OP,
        framework="numpy",
        backend="numpy",
        algorithm="chunked_scan",
        run=run,
        adjoint=adjoint,
        prepare=prepare,
        cost=costs.chunks,
        refuses=costs.refuses_chunks,
        saves=costs.saves,
    )
)
