"""The integral over cells by one matrix product: O(n**2) time and memory, any orders, short series."""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.nonuniform import costs
from hpfracc_nn.fractional.nonuniform.numpy.forms import Form
from hpfracc_nn.fractional.nonuniform.numpy.weights import CellWeights
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(weights: CellWeights, workload: Workload) -> Form:
    return weights.matrix()


def run(form: Form, z: np.ndarray) -> np.ndarray:
    return form.product(z)


def adjoint(form: Form, g: np.ndarray) -> np.ndarray:
    return form.adjoint(g)


register(
    Kernel(
        op=costs.OP,
        framework="numpy",
        backend="numpy",
        algorithm="dense",
        run=run,
        adjoint=adjoint,
        prepare=prepare,
        cost=costs.dense,
        refuses=costs.refuses_dense,
        saves=costs.saves,
    )
)
