"""Our CUDA sources: compiled by NVRTC through CuPy when first needed, launched on torch's stream over torch's memory.

CuPy is imported when a kernel first compiles or runs, never to refuse or to be ranked; it keeps what it compiled on
disk. A launch takes addresses, so nothing is copied; it neither waits nor allocates, so that a CUDA graph may capture
it once its code is loaded, which `BackendManager.warm_up` does ahead. Whoever calls `launch` keeps the tensors behind
the addresses alive until it has returned: torch's allocator then reuses their memory on the same stream only.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import torch

from hpfracc_nn.selection import Compilation, Workload
from hpfracc_nn.selection.registry import find_spec

C_TYPES = {"float32": "float", "float64": "double"}
STORED = {"float16": "Half", "bfloat16": "BFloat"}  # computed in float; see cuda_common.cuh

_INCLUDE = '#include "cuda_common.cuh"\n'
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_USUAL = 48 << 10  # bytes of shared memory that every kernel may have; more must be requested
_COMPILED = 4.0  # seconds, of one source by NVRTC

_ready: set[tuple[Source, str]] = set()  # what was loaded, and on which device


class Source(NamedTuple):
    """One of our files, compiled for one dtype.

    Attributes:
        package: The package that it lies in.
        file: Its name there.
        dtype: Of the samples as they are stored: float32, float64, or half precision where the source reads it.
        states: The number of states, as the macro STATES; 0 where the source does without.
    """

    package: str
    file: str
    dtype: str
    states: int = 0

    @property
    def text(self) -> str:
        """The text of the source, with cuda_common.cuh in place of the line that includes it."""
        source = (files(self.package) / self.file).read_text(encoding="utf-8")
        if _INCLUDE not in source:
            return source
        return source.replace(_INCLUDE, (files(__package__) / "cuda_common.cuh").read_text(encoding="utf-8"))

    @property
    def definitions(self) -> tuple[str, ...]:
        """The compiler's options: the C++ standard, and macros for the dtype and the number of states."""
        found = ["-std=c++17", f"-DSAMPLE={C_TYPES.get(self.dtype, 'float')}"]
        if self.dtype in STORED:
            found.append(f"-DSTORED={STORED[self.dtype]}")
        if self.states:
            found.append(f"-DSTATES={self.states}")
        return tuple(found)


class _Stream(NamedTuple):
    """A stream of torch as CuPy takes it in a launch, in every version: an object with its address, `ptr`."""

    ptr: int


class Facts(NamedTuple):
    """Facts of a device that a launch depends on: multiprocessors, and bytes of shared memory that a block may have."""

    processors: int
    shared: int


def launch(
    source: Source, function: str, device: torch.device, grid: int, block: int, shared: int, given: np.ndarray
) -> None:
    """Launch a kernel on torch's current stream of a device.

    Args:
        source: The source that has the kernel.
        function: The kernel's name in the source.
        device: Where its data lie.
        grid: How many blocks.
        block: Threads of each block.
        shared: Bytes of shared memory of each block.
        given: The kernel's one argument, handed over by value: an array of one structure.

    Raises:
        RuntimeError: CUDA's, through CuPy.
    """
    import cupy

    stream = _Stream(torch.cuda.current_stream(device).cuda_stream)
    with cupy.cuda.Device(device.index):
        kernel = _loaded(source, function, device.index, shared > _USUAL)
        kernel((grid,), (block,), (given,), shared_mem=shared, stream=stream)
    _ready.add((source, str(device)))


@cache
def _loaded(source: Source, function: str, device: int, is_large: bool) -> Any:
    """Return a compiled kernel as CuPy calls it, by the name of its function in the source.

    `device` is the index of the device that it is loaded on. With `is_large` it may use all the shared memory that the
    device allows a block, more than is usual.
    """
    import cupy

    kernel = cupy.RawModule(code=source.text, options=source.definitions, backend="nvrtc").get_function(function)
    if is_large:
        kernel.max_dynamic_shared_size_bytes = facts(f"cuda:{device}").shared
    return kernel


@cache
def facts(device: str) -> Facts:
    """Return the Facts of a device, such as "cuda:0"."""
    found = torch.cuda.get_device_properties(torch.device(device))
    return Facts(found.multi_processor_count, getattr(found, "shared_memory_per_block_optin", _USUAL))


def missing() -> str | None:
    """Return why no CUDA device can be used here, for want of a driver or of a torch with CUDA; None if one may be.

    No package is imported and no device opened.
    """
    if not _has_driver():
        return f"there is no NVIDIA driver here: {_DRIVER} does not load"
    if torch.version.cuda is None:
        return "this torch was built without CUDA; install one that was built with it"
    return None


def unusable(workload: Workload) -> str | None:
    """Return why our sources cannot compute a workload on a usable device: its dtype, or a missing CuPy; or None."""
    if workload.converted.dtype not in C_TYPES:
        return f"{workload.dtype} is not computed in; it takes {' and '.join(C_TYPES)}"
    if find_spec("cupy") is None:
        return "CuPy is not installed; pip install 'hpfracc-nn[cuda12]' or 'hpfracc-nn[cuda13]', as the driver has it"
    return None


def refusal(workload: Workload) -> str | None:
    """Return why no CUDA kernel can take a workload here, or None; CuPy is not imported for it."""
    if _has_driver() and not workload.device.startswith("cuda"):  # no package would help
        return f"it computes on a CUDA device and the data lie on {workload.device}"
    if (found := missing()) is not None:
        return found
    return absent(workload.device) or unusable(workload)


def absent(device: str) -> str | None:
    """Return why `device` is none of the CUDA devices that torch sees: of another kind, or beyond them; or None."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or int(index or 0) >= torch.cuda.device_count():
        return f"torch sees {torch.cuda.device_count()} CUDA devices, and {device} is none of them"
    return None


def compilation(workload: Workload, source: Source) -> Compilation | None:
    """Return what the next call compiles or loads, None where the source has run on the workload's device."""
    device = workload.device
    return None if (source, device) in _ready else Compilation(_COMPILED, ("cuda", device, source))


def compilation_anywhere(source: Source) -> Compilation | None:
    """Return what a call on any device compiles, None where the source has run on one.

    On another device, what CuPy has compiled is only loaded.
    """
    return None if any(source == ready for ready, _ in _ready) else Compilation(_COMPILED, ("cuda", source))


@cache
def _has_driver() -> bool:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True
