"""The kernel `dense` in Numba: a history added up directly by compiled sums.

It is for states of a few numbers, for which making the matrices would cost more than the sums. Numba is imported when
the kernel first runs. Values are stored with time last, so that a sum reads weights and values in order.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
from torch import Tensor

from hpfracc_nn.fractional.numba.kernel import compilation, refusal
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register
from hpfracc_nn.solvers.torch.memory import OPS, PastSum, Toeplitz, WeightMatrix, block_length, run, saves

_COMPILED, _LOADED = 1.0, 0.1  # seconds to compile the function, and to load it from the cache, on a core of 2.5 GHz

_ready: set[str] = set()  # dtypes whose function has run


class NumbaSum(PastSum):
    """The `PastSum` (see `memory`) of the kernel that adds up all older values, a NumPy array with time last."""

    def __init__(self, matrix: WeightMatrix):
        super().__init__(matrix)
        assert isinstance(matrix, Toeplitz), "the mesh is uniform"
        self._backwards = np.ascontiguousarray(matrix.backwards[..., : matrix.steps].numpy())
        self._values: np.ndarray | None = None  # [a, ins, r, steps + 1]
        self._seen = 0  # steps whose values are in `_values`

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """Add to `out` the weighted values of all steps before the block, by compiled sums: see `PastSum.far`."""
        if not first:
            return
        a, ins, width = values.shape[0], self.matrix.ins, values.shape[-1]
        if self._values is None:
            self._values = np.empty((a, ins, width, self.matrix.steps + 1), self._backwards.dtype)
        fresh = values[:, self._seen * ins : first * ins].numpy().reshape(a, first - self._seen, ins, width)
        self._values[..., self._seen : first] = fresh.transpose(0, 2, 3, 1)
        self._seen = first
        import_module("hpfracc_nn.fractional.numba.past").far(self._backwards, self._values, first, out.numpy())
        _ready.add(self._backwards.dtype.name)


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


def compiles(workload: Workload) -> Compilation | None:
    """Return what the next call of this kernel has to load or compile for the workload's dtype; None if nothing."""
    if workload.dtype in _ready:
        return None
    return compilation(("numba history", workload.dtype), compiled=_COMPILED, loaded=_LOADED)


for op in (OPS["auto"], OPS["full"], OPS["window"]):
    register(Kernel(op, "torch", "numba", "dense", run, run, NumbaSum.prepare, cost, refusal, saves, compiles))
