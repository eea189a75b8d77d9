"""What Triton needs to compute on torch's data: the package, a GPU of torch's, and code that is compiled when needed.

Triton comes with every build of torch for GPUs, NVIDIA's and AMD's; torch calls both "cuda". Triton is imported when a
kernel first runs, never to refuse or to be ranked; it keeps what it compiled on disk. Launches are on torch's current
stream.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch

from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import C_TYPES
from hpfracc_nn.selection import Compilation, Workload
from hpfracc_nn.selection.registry import find_spec

_COMPILED = 2.0  # seconds, of one kernel on a host; a call needs a few

_ready: set[tuple[str, Hashable]] = set()  # what ran, and on which device


def refusal(workload: Workload) -> str | None:
    """Return why no kernel in Triton can take a workload here, or None; Triton is not imported for that."""
    if not workload.device.startswith("cuda"):
        return f"it computes on a GPU and the data lie on {workload.device}"
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without a GPU; install one that was built with CUDA or ROCm"
    if (found := cuda_launch.absent(workload.device)) is not None:
        return found
    if workload.converted.dtype not in C_TYPES:
        return f"{workload.dtype} is not computed in; it takes {' and '.join(C_TYPES)}"
    if find_spec("triton") is None:
        return "Triton is not installed; pip install triton, in the version that this torch names"
    return None


def compilation(device: str, code: Hashable) -> Compilation | None:
    """Return what the next call compiles or loads, None where that code has run on the device."""
    return None if (device, code) in _ready else Compilation(_COMPILED, ("triton", device, code))


def ran(device: torch.device, code: Hashable) -> None:
    """Remember that the code has run on a device, for `compilation`."""
    _ready.add((str(device), code))


def on(device: torch.device) -> Any:
    """Return a context in which Triton, which launches on the current device, launches on this one."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


class Plainly:
    """A launcher of a Triton kernel, for calls that no compiler follows.

    Args:
        kernel: The kernel, as `triton.jit` returns it.
    """

    def __init__(self, kernel: Any):
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """Return a function that launches the kernel on a grid.

        Products and sums are fused, which some versions of Triton would do without being asked.
        """
        return partial(self._kernel[grid], enable_fp_fusion=True)
