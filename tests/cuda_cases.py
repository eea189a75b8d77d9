"""The CUDA sources compiled as C++ and run by fibres, in the place of a device; see tests/cuda/shim.hpp.

A launch takes the same structure, grid and amount of shared memory as on a device, over tensors of the host, so that
the kernels' Python side runs too. Each launch runs twice, with the threads in opposite orders, and must give the same
bits both times.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Facts, Source

SHIM = Path(__file__).parent / "cuda"
FAULTS = {1: "some threads ended where others wait at a barrier", 2: "shared memory was written beyond its end"}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

_MAIN = """
static {structure} given_{name};
extern "C" int run_{name}(const {structure}* p, unsigned grid, unsigned threads, unsigned long bytes, int reversed) {{
    given_{name} = *p;
    return shim::launch([] {{ {name}(given_{name}); }}, grid, threads, bytes, reversed);
}}
"""


@cache
def folder(base: str) -> Path:
    made = Path(base)
    made.mkdir(parents=True, exist_ok=True)
    return made


@cache
def compiled(source: Source, base: str) -> ctypes.CDLL:
    """Return the library of a source."""
    text = source.text
    names = [part.split("(")[0].split()[-1] for part in text.replace("__launch_bounds__(64) ", "").replace(
        "__launch_bounds__(128) ", "").replace("__launch_bounds__(256) ", "").split('extern "C" __global__ void ')[1:]]
    structure = text.split('extern "C" __global__')[1].split("(const ")[1].split()[0]
    where = folder(base)
    stem = f"{source.file.replace('.', '_')}_{source.dtype}_{source.states}"
    body = text + "".join(_MAIN.format(name=name, structure=structure) for name in names)
    (where / f"{stem}.cpp").write_text('#include "shim.hpp"\n' + body)
    flags = [each for each in source.definitions if each.startswith("-D")]
    # Sums are to be rounded as they are written: the device fuses products and sums, which no test may rest on.
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas",
               "-Wno-unused-function", "-Wno-maybe-uninitialized", *flags, f"-I{SHIM}", "-o", str(where / f"{stem}.so"),
               str(where / f"{stem}.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(where / f"{stem}.so"))


@dataclass
class Emulated:
    """Stands for a device.

    Attributes:
        base: Folder for compiled code.
        processors: That it pretends to have; many make long signals be cut.
        launches: Names of what ran.
    """

    base: str
    processors: int = 1
    shared: int = 227 << 10
    launches: list[str] = field(default_factory=list)

    def launch(
        self, source: Source, function: str, device: torch.device, grid: int, block: int, shared: int, given: np.ndarray
    ) -> None:
        run = getattr(compiled(source, self.base), f"run_{function}")
        run.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_ulong, ctypes.c_int]
        self.launches.append(function)
        fault = run(given.ctypes.data, grid, block, shared, len(self.launches) % 2)
        assert fault == 0, f"{source.file} {function}: {FAULTS[fault]}"

    def facts(self, device: str) -> Facts:
        return Facts(self.processors, self.shared)


@pytest.fixture
def emulated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    """A device of the host; kernels take data on the CPU for it."""
    found = Emulated(str(tmp_path_factory.getbasetemp() / "cuda"))
    monkeypatch.setattr(cuda_launch, "launch", found.launch)
    monkeypatch.setattr(cuda_launch, "facts", found.facts)
    monkeypatch.setattr(cuda_launch, "refusal", lambda workload: None)
    monkeypatch.setattr(cuda_launch, "compilation", lambda workload, *sources: None)
    yield found
