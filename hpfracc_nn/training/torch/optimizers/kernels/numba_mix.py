"""The kernel of `history_mix` that Numba compiles, block by block: every row is read once, all parameters in one call.

The blocks of all parameters are spread over as many threads as torch may use; see `numba_loops.py`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.numba.kernel import compilation, refusal
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register
from hpfracc_nn.training.torch.optimizers.mix import Mix, passes_of

BLOCK = 8192  # values: a few rows of a block stay in the caches nearest to the core
_GRAIN = 1 << 16  # values for a thread: to hand work to a thread takes as long as some 20000 values
_DTYPES = {"float32": np.float32, "float64": np.float64}
_COMPILED, _LOADED = 2.0, 0.1  # seconds, on a core of 2.5 GHz

_ready: set[str] = set()  # dtypes that have run


def run(grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    name = str(grads[0].dtype).removeprefix("torch.")
    sizes = np.array([grad.numel() for grad in grads])
    ends = np.cumsum(-(-sizes // BLOCK))
    dtype = _DTYPES[name]
    given = (
        *(_addresses(each) for each in (grads, rows, averages)),
        sizes,
        ends,
        BLOCK,
        dtype(mix.first),
        np.array(mix.weights, dtype),
        np.array(mix.gains, dtype),
    )
    function = _loops().mix
    _ready.add(name)
    parts = max(1, min(torch.get_num_threads(), int(sizes.sum()) // _GRAIN))
    _threads().spread(lambda part, begin, end: function(begin, end, *given), int(ends[-1]), parts)


def cost(workload: Workload) -> Cost:
    read, written = passes_of(workload)
    samples = workload.rows * workload.n
    threads = min(workload.threads, max(1, samples // _GRAIN))
    return Cost(
        flops={"elementwise": float((1 + read + written) * samples) * workload.threads / threads},
        bytes=float((4 + read + 2 * written) * samples * workload.itemsize),
        launches=4 + workload.rows // 2,
    )


def compiles(workload: Workload) -> Compilation | None:
    if workload.dtype in _ready:
        return None
    return compilation(("history_mix", workload.dtype), compiled=_COMPILED, loaded=_LOADED, beside=__file__)


def _addresses(tensors: list[Tensor]) -> np.ndarray:
    return np.array([each.data_ptr() for each in tensors])


@cache
def _loops() -> Any:
    return import_module("hpfracc_nn.training.torch.optimizers.kernels.numba_loops")


@cache
def _threads() -> Any:
    return import_module("hpfracc_nn.fractional.numba.threads")


register(Kernel("history_mix", "torch", "numba", "blocks", run, cost=cost, refuses=refusal, compiles=compiles))
