"""The kernel `recurrence` in CUDA, for a history as decaying exponentials: one launch for each block of steps.

The matrices are those of the kernel in torch's operations (`plain`), which takes four calls for the same. The CUDA code
is in cuda_recurrence.cu.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register
from hpfracc_nn.solvers.torch.kernels.plain import Matrices, RecurrenceSum, recurrence_cost, recurrence_refuses
from hpfracc_nn.solvers.torch.memory import OPS, block_length, run, saves

_THREADS = 128

# The fields of the struct `Past` in cuda_recurrence.cu.
_PAST = np.dtype(
    [(name, np.uint64) for name in ("values", "into", "decay", "out_of", "states", "out")]
    + [(name, np.int64) for name in ("width", "pushed")]
    + [(name, np.int32) for name in ("equations", "count", "fresh", "rows")],
    align=True,
)


class CudaSum(RecurrenceSum):
    """The `PastSum` (see `memory`) whose older past is the states of exponentials, advanced by CUDA code."""

    def advance(self, values: Tensor, states: Tensor, fresh: slice, matrices: Matrices, out: Tensor) -> None:
        """Update the states with new values and add their part to a block's sums, in one launch of the CUDA code.

        Arguments are those of `RecurrenceSum.advance`.
        """
        into, decay, out_of = matrices
        equations, pushed, width = values.shape
        given = np.zeros(1, _PAST)
        given["values"] = values.data_ptr() + fresh.start * width * values.element_size()
        given["into"], given["decay"], given["out_of"] = into.data_ptr(), decay.data_ptr(), out_of.data_ptr()
        given["states"], given["out"] = states.data_ptr(), out.data_ptr()
        given["width"], given["pushed"], given["equations"] = width, pushed, equations
        given["count"], given["fresh"] = states.shape[1], fresh.stop - fresh.start
        given["rows"] = out.shape[1] * out.shape[2]
        source, blocks = source_of(str(values.dtype).removeprefix("torch.")), equations * -(-width // _THREADS)
        cuda_launch.launch(source, "far", values.device, blocks, _THREADS, 0, given)


def source_of(dtype: str) -> Source:
    """Return the CUDA source of this kernel for a dtype, such as "float32"."""
    return Source(__package__, "cuda_recurrence.cu", dtype)


def refuses(workload: Workload) -> str | None:
    return cuda_launch.refusal(workload) or recurrence_refuses(workload)


def cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    blocks = workload.n / block_length(workload.rows * workload.width)
    return replace(recurrence_cost(workload), launches=int(4 * blocks * passes))


def compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, source_of(workload.dtype))


for op in (OPS["auto"], OPS["exponentials"]):
    register(Kernel(op, "torch", "cuda", "recurrence", run, run, CudaSum.prepare, cost, refuses, saves, compiles))
