"""The CUDA sources compiled as C++ and run by fibres, in the place of a device; see tests/cuda/shim.hpp.

A launch takes the same structure, grid and amount of shared memory as on a device, over tensors of the host, so that
the kernels' Python side runs too. Each launch runs twice, with the threads in opposite orders, and must give the same
bits both times.
"""

import ctypes
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Facts, Source
from hpfracc_nn.selection import BackendManager, Kernel, Settings
from tests import torch_cases

SHIM = Path(__file__).parent / "cuda"
FAULTS = {1: "some threads ended where others wait at a barrier", 2: "shared memory was written beyond its end"}
# Few signals, each long enough to be cut: just two segments of the least length, odd ends, many of them.
CUT = [(1, 4096), (3, 4099), (2, 20001)]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

_MAIN = """
static {structure} given_{name};
extern "C" int run_{name}(const {structure}* p, unsigned grid, unsigned threads, unsigned long bytes, int reversed) {{
    given_{name} = *p;
    return shim::launch([] {{ {name}(given_{name}); }}, grid, threads, bytes, reversed);
}}
"""


# Sums are rounded as they are written: a device fuses products and sums, which no result may rest on.
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w")


@cache
def folder(base: str) -> Path:
    made = Path(base)
    made.mkdir(parents=True, exist_ok=True)
    return made


def entries(text: str) -> tuple[str, list[str]]:
    """Return the name of the structure that a source's kernels take, and their names."""
    found = re.findall(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(const (\w+) p\)', text)
    return found[0][1], [name for name, _ in found]


@cache
def compiled(source: Source, base: str) -> ctypes.CDLL:
    """Return the library of a source."""
    structure, names = entries(source.text)
    stem = folder(base) / f"{source.file.replace('.', '_')}_{source.dtype}_{source.states}"
    mains = (_MAIN.format(name=name, structure=structure) for name in names)
    stem.with_suffix(".cpp").write_text('#include "shim.hpp"\n' + source.text + "".join(mains))
    command = ["g++", *_FLAGS, *(each for each in source.definitions if each.startswith("-D")), f"-I{SHIM}"]
    where = ["-o", str(stem.with_suffix(".so")), str(stem.with_suffix(".cpp"))]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(stem.with_suffix(".so")))


@dataclass
class Emulated:
    """Stands for a device.

    Attributes:
        base: Folder for compiled code.
        processors: That it pretends to have; many make long signals be cut.
        launches: Names of what ran.
        sources: That were compiled for it.
        asked: Those that a kernel said it would have to compile.
    """

    base: str
    processors: int = 1
    shared: int = 227 << 10
    launches: list[str] = field(default_factory=list)
    sources: set[Source] = field(default_factory=set)
    asked: set[Source] = field(default_factory=set)

    def launch(
        self, source: Source, function: str, device: torch.device, grid: int, block: int, shared: int, given: np.ndarray
    ) -> None:
        run = getattr(compiled(source, self.base), f"run_{function}")
        run.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_ulong, ctypes.c_int]
        self.launches.append(function)
        self.sources.add(source)
        fault = run(given.ctypes.data, grid, block, shared, len(self.launches) % 2)
        assert fault == 0, f"{source.file} {function}: {FAULTS[fault]}"

    def facts(self, device: str) -> Facts:
        return Facts(self.processors, self.shared)


@pytest.fixture
def emulated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    """A device of the host; kernels take data on the CPU for it."""
    found = Emulated(str(tmp_path_factory.getbasetemp() / "cuda"))
    monkeypatch.setattr(cuda_launch, "launch", found.launch)
    monkeypatch.setattr(cuda_launch, "facts", found.facts)
    monkeypatch.setattr(cuda_launch, "refusal", lambda workload: None)
    monkeypatch.setattr(cuda_launch, "compilation", lambda workload, source: found.asked.add(source))
    # Managers of other tests go on to be refused, and what these remember goes with them.
    monkeypatch.setattr(torch_cases, "manager_for", cache(manager_for))
    return found


def manager_for(kernel: Kernel) -> BackendManager:
    """Return a new manager that runs this kernel or raises."""
    return BackendManager(
        Settings(force_backend=kernel.backend, force_algorithm=kernel.algorithm, calibration="shipped", mode="prior")
    )


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Let whatever waits for the device raise.

    Torch warns once that it does not see all that waits, when the mode is set already: as an error that would leave it
    so for every test after this one.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
