"""The average block by block, compiled by Numba: every row is read once, for all parameters in one call.

The blocks of all parameters are spread over as many threads as torch may use; see `numba_loops.py`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.numba.availability import is_kept, unusable
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register
from hpfracc_nn.selection.installed import find_spec
from hpfracc_nn.training.torch.optimizers.mix import Mix, passes_of

BLOCK = 8192  # values: a few rows of it stay in the caches nearest to the core
_GRAIN = 1 << 16  # values for a thread: a hand-over costs as long as some 20000
_DTYPES = {"float32": np.float32, "float64": np.float64}
_COMPILED, _LOADED, _NUMBA_LOADED = 2.0, 0.1, 0.5  # seconds, on a core of 2.5 GHz

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


def refuses(workload: Workload) -> str | None:
    if workload.device != "cpu":
        return f"it computes on the CPU and the data lie on {workload.device}"
    if find_spec("numba") is None:
        return "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    if workload.dtype not in _DTYPES:
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    return unusable()


def compiles(workload: Workload) -> Compilation | None:
    if workload.dtype in _ready:
        return None
    loads_numba = "numba.core" not in sys.modules
    seconds = (_LOADED if is_kept(__file__) else _COMPILED) + _NUMBA_LOADED * loads_numba
    return Compilation(seconds, ("history_mix", workload.dtype))


def _addresses(tensors: list[Tensor]) -> np.ndarray:
    return np.array([each.data_ptr() for each in tensors])


@cache
def _loops() -> Any:
    return import_module("hpfracc_nn.training.torch.optimizers.kernels.numba_loops")


@cache
def _threads() -> Any:
    return import_module("hpfracc_nn.fractional.numba.threads")


register(Kernel("history_mix", "torch", "numba", "blocks", run, cost=cost, refuses=refuses, compiles=compiles))
