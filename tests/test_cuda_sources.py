"""Every CUDA source compiles for all capabilities, keeps its data in registers, and travels with the package."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import hpfracc_nn
from hpfracc_nn.fractional.torch.kernels import cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.solvers.torch.kernels import cuda_recurrence as history
from hpfracc_nn.training.torch.optimizers.kernels import cuda_mix

SOURCES = [
    *(
        source(dtype)
        for source in (cuda_product.chunked_source, cuda_product.dense_source)
        for dtype in (torch.float32, torch.float64)
    ),
    *(cuda_product.chunked_source(dtype) for dtype in (torch.float16, torch.bfloat16)),
    cuda_product.dense_source(torch.float16),
    cuda_product.recurrence_source(torch.bfloat16, 24),
    cuda_product.recurrence_source(torch.float32, 24),
    cuda_product.recurrence_source(torch.float32, 40),
    cuda_product.recurrence_source(torch.float64, 48),
    *(each.source_of(dtype) for each in (cuda_mix, history) for dtype in ("float32", "float64")),
]
SPILLED = 256  # bytes of a thread: a few numbers that are used once a chunk
every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda it: f"{it.file}-{it.dtype}-{it.states}")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def nvcc(source: Source, folder: Path, *options: str) -> str:
    """Compile a source as NVRTC gets it; return what the compiler says."""
    path = folder / "source.cu"
    path.write_text(source.text)
    command = ["nvcc", *source.definitions, *options, "-o", str(folder / "out"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@needs_nvcc
@every_source
@pytest.mark.parametrize("capability", [75, 100])  # no source asks which it is; 90 is compiled for below
def test_every_source_compiles_for_old_and_new_devices(source: Source, capability: int, tmp_path: Path) -> None:
    said = nvcc(source, tmp_path, "-ptx", f"-arch=compute_{capability}")
    assert "error" not in said


@pytest.mark.slow
@needs_nvcc
@every_source
def test_registers_hold_what_a_thread_works_on(source: Source, tmp_path: Path) -> None:
    said = nvcc(source, tmp_path, "-cubin", "-arch=sm_90", "-Xptxas=-v")
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", said)]
    assert spilled
    assert max(spilled) <= SPILLED


@pytest.mark.slow
@every_source
def test_cupys_nvrtc_compiles_every_source(source: Source) -> None:
    """By the compiler that a device's machine has, with the options that CuPy adds; it needs no device."""
    nvrtc = pytest.importorskip("cupy").cuda.nvrtc
    try:
        nvrtc.getVersion()
    except RuntimeError as missing:
        pytest.skip(str(missing))
    program = nvrtc.createProgram(source.text, "kernel.cu", (), ())
    options = (*source.definitions, "-ftz=true", "-arch=sm_90", "--device-as-default-execution-space")
    nvrtc.compileProgram(program, options)
    assert len(nvrtc.getCUBIN(program)) > 1000


@every_source
def test_a_source_stands_alone(source: Source) -> None:
    """NVRTC is handed one text, without files beside it or headers of a C++ library."""
    assert "#include" not in source.text
    assert "atomic" not in source.text.replace("by atomics", "")


def test_every_source_of_the_package_is_compiled_here() -> None:
    root = Path(hpfracc_nn.__file__).parent
    there = {path.relative_to(root).as_posix() for path in root.rglob("*.cu")}
    known = {"/".join([*each.package.split(".")[1:], each.file]) for each in SOURCES}
    assert there == known
