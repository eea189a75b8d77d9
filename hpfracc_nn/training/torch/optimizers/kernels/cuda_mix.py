"""The kernel of `history_mix` in CUDA: one launch for sixteen parameters, every row read once. See cuda_mix.cu."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register
from hpfracc_nn.training.torch.optimizers.mix import Mix, cost_of_one_pass, passes_of

_TENSORS, _MOST = 16, 64  # the most parameters of a launch, and the most rows
_THREADS, _EACH = 256, 4  # threads of a block, and values of a thread
_LAUNCHES = 4  # a launch, with its lists, takes as long as so many small calls of torch

# As `Mix` in cuda_mix.cu.
_LISTS = np.dtype(
    [
        ("grads", np.uint64, _TENSORS),
        ("rows", np.uint64, _TENSORS),
        ("averages", np.uint64, _TENSORS),
        ("sizes", np.int64, _TENSORS),
        ("ends", np.int64, _TENSORS),
        ("first", np.float64),
        ("weights", np.float64, _MOST),
        ("gains", np.float64, _MOST),
        ("count", np.int32),
    ],
    align=True,
)


def run(grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    lists = np.zeros(1, _LISTS)
    lists["first"], lists["count"] = mix.first, len(mix.weights)
    lists["weights"][0, : len(mix.weights)] = mix.weights
    lists["gains"][0, : len(mix.gains)] = mix.gains
    for begin in range(0, len(grads), _TENSORS):
        some = slice(begin, begin + _TENSORS)
        _launch(lists, grads[some], rows[some], averages[some])


def _launch(lists: np.ndarray, grads: list[Tensor], rows: list[Tensor], averages: list[Tensor]) -> None:
    for name, tensors in (("grads", grads), ("rows", rows), ("averages", averages)):
        lists[name][0, : len(tensors)] = [each.data_ptr() for each in tensors]
    sizes = np.array([each.numel() for each in grads])
    ends = np.cumsum(-(-sizes // (_THREADS * _EACH)))
    lists["sizes"][0, : len(grads)] = sizes
    lists["ends"][0, : len(grads)] = ends
    if ends[-1]:
        source = source_of(str(grads[0].dtype).removeprefix("torch."))
        cuda_launch.launch(source, "mix", grads[0].device, int(ends[-1]), _THREADS, 0, lists)


def source_of(dtype: str) -> Source:
    """Return the CUDA source of the kernel for a dtype, given by its name such as "float32"."""
    return Source(__package__, "cuda_mix.cu", dtype)


def cost(workload: Workload) -> Cost:
    return cost_of_one_pass(workload, _LAUNCHES * -(-workload.rows // _TENSORS))


def refuses(workload: Workload) -> str | None:
    if (found := cuda_launch.refusal(workload)) is not None:
        return found
    read, written = passes_of(workload)
    return f"it takes up to {_MOST} rows, and there are {max(read, written)}" if max(read, written) > _MOST else None


def compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, source_of(workload.dtype))


register(Kernel("history_mix", "torch", "cuda", "blocks", run, cost=cost, refuses=refuses, compiles=compiles))
