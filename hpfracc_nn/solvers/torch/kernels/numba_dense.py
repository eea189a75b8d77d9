"""A history added up directly by compiled sums: states of a few numbers, whose matrices would cost more than the sums.

Numba is imported when the kernel first runs. Its values lie with time last, so that a sum reads both its operands in
order.
"""

from __future__ import annotations

import sys
from importlib import import_module

import numpy as np
from torch import Tensor

from hpfracc_nn.fractional.numba.availability import is_kept, unusable
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register
from hpfracc_nn.selection.installed import find_spec
from hpfracc_nn.solvers.torch.forms import Blocks
from hpfracc_nn.solvers.torch.kernels.blocks import OPS, block_length, run, saves
from hpfracc_nn.solvers.torch.operand import Operand, Toeplitz

_DTYPES = ("float32", "float64")
# Seconds, on a core of 2.5 GHz.
_COMPILED, _LOADED, _NUMBA_LOADED = 1.0, 0.1, 0.5

_ready: set[str] = set()  # dtypes whose function has run


class SumForm(Blocks):
    """See `forms.Form`."""

    def __init__(self, operand: Operand):
        super().__init__(operand)
        assert isinstance(operand, Toeplitz), "the mesh is uniform"
        self._backwards = np.ascontiguousarray(operand.backwards[..., : operand.steps].numpy())
        self._values: np.ndarray | None = None  # [a, ins, r, steps + 1]
        self._seen = 0  # steps whose values are there

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """See `forms.Form.far`."""
        if not first:
            return
        a, ins, width = values.shape[0], self.operand.ins, values.shape[-1]
        if self._values is None:
            self._values = np.empty((a, ins, width, self.operand.steps + 1), self._backwards.dtype)
        fresh = values[:, self._seen * ins : first * ins].numpy().reshape(a, first - self._seen, ins, width)
        self._values[..., self._seen : first] = fresh.transpose(0, 2, 3, 1)
        self._seen = first
        import_module("hpfracc_nn.fractional.numba.past").far(self._backwards, self._values, first, out.numpy())
        _ready.add(self._backwards.dtype.name)


def prepare(operand: Operand, workload: Workload) -> SumForm:
    return SumForm(operand)


def cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, size = workload.rows * workload.width, workload.itemsize
    pairs = workload.n**2 / 2
    return Cost(
        flops={"matmul": 8.0 * pairs * numbers * passes},  # at the rate of a sum, a fourth of a matrix product's
        bytes=passes * size * 3.0 * workload.n * numbers,
        launches=int(4 * workload.n / block_length(numbers) * passes),
        workspace=float(size * workload.n * numbers),
    )


def refuses(workload: Workload) -> str | None:
    """Return why the workload cannot be taken, or None."""
    if workload.device != "cpu":
        return f"it computes on the CPU and the data lie on {workload.device}"
    if find_spec("numba") is None:
        return "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    if workload.dtype not in _DTYPES:
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    return unusable()


def compiles(workload: Workload) -> Compilation | None:
    """Return what the next call loads or compiles: the function for this dtype."""
    if workload.dtype in _ready:
        return None
    seconds = (_LOADED if is_kept() else _COMPILED) + _NUMBA_LOADED * ("numba.core" not in sys.modules)
    return Compilation(seconds, ("numba history", workload.dtype))


for op in (OPS["auto"], OPS["full"], OPS["window"]):
    register(Kernel(op, "torch", "numba", "dense", run, run, prepare, cost, refuses, saves, compiles))
