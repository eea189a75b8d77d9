"""The first session on a machine with a CUDA device, in steps of less than ten minutes: facts, memory, tests, figures.

    python benchmarks/gpu_session.py [STEP ...] [--output DIR] [--rehearse]

Each command has its own limit, and what it said up to then is kept: DIR/NAME.txt has all of it, the screen its end. One
that fails stops no other. Read what a step says before the next. Torch, CuPy and pytest have to be there, and no
package index: tests run without what else is missing, and warnings of the machine's own versions stop nothing. A
rehearsal runs every step on the CPU, without a device's tools, tests only collected.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

REHEARSED = 900.0  # seconds that a command may take in a rehearsal, on whatever machine
GRACE = 10  # seconds that a command has to say its last words
ROOT = Path(__file__).resolve().parents[1]
PYTHON = (sys.executable,)
VALUES = (*PYTHON, "benchmarks/gpu_values.py")
PYTEST = (*PYTHON, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", "--tb=short", "-r", "fE")
# Each tensor is an allocation of its own, so that memory beyond its end is nobody's: torch's allocator hands out parts
# of larger ones, inside which a sanitizer sees nothing. A launch uses none of CuPy's.
ALONE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
FACTS = """
import importlib.util, platform, numpy, torch
from hpfracc_nn import workload
from hpfracc_nn.selection import kernels
print("Python", platform.python_version(), "NumPy", numpy.__version__, "torch", torch.__version__)
print(torch.cuda.get_device_name() if torch.cuda.is_available() else "torch can use no CUDA device")
asked = workload((64, 300), framework="torch", device="cuda:0")
for kernel in kernels("toeplitz", "torch"):
    if kernel.backend in ("cuda", "triton"):
        print(kernel.name, "refuses:", kernel.ask("refuses", asked))
if importlib.util.find_spec("cupy"):
    import cupy
    print("CuPy", cupy.__version__, "NVRTC", cupy.cuda.nvrtc.getVersion())
else:
    print("CuPy is not installed")
if importlib.util.find_spec("triton"):
    import triton
    print("Triton", triton.__version__)
"""
COUNTED = """
import sys, torch
from hpfracc_nn import GrunwaldLetnikov, derivative
from hpfracc_nn.selection import BackendManager, Settings
backend, device, algorithm, *sizes = sys.argv[1:]
x = torch.randn(*map(int, sizes), device=device)
settings = Settings(force_backend=backend, force_algorithm=algorithm, mode="prior", sample=False, wisdom="off")
manager = BackendManager(settings)
for _ in range(4):
    derivative(x, GrunwaldLetnikov(0.5), dim=1, manager=manager)
"""
COUNTERS = (
    *("ncu", "--clock-control", "none", "--kernel-name", "regex:forward", "--launch-skip", "2", "--launch-count", "1"),
    *("--section", "SpeedOfLight", "--section", "LaunchStats", "--section", "Occupancy"),
    *("--section", "WarpStateStats", "--section", "InstructionStats"),
)
COUNTED_ON = {
    "chunked_scan": ("4096", "4096"),
    "recurrence": ("16", "1024", "256"),
    "dense": ("4096", "512"),
}


@dataclass(frozen=True)
class Command:
    """One process of a step.

    Args:
        name: Of its file.
        given: What is run, in the checkout.
        limit: Seconds after which it is ended.
        shown: Lines of its end that are printed.
        tool: What it runs under, such as a sanitizer; a rehearsal goes without.
        environment: What is set for it.
        rehearsed: What a rehearsal adds; None: it has no part of it on a CPU.
    """

    name: str
    given: tuple[str, ...]
    limit: float
    shown: int = 30
    tool: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    rehearsed: tuple[str, ...] | None = ("--rehearse",)


def steps(output: Path) -> dict[str, list[Command]]:
    """Return the commands of each step, by its name, in their order."""
    figures = ("--output", str(output / "figures"))
    collect, chosen, alone = ("--collect-only",), ("-m", "gpu and not slow"), tuple(ALONE.items())
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.used,clocks.max.sm", "--format=csv,noheader")
    first = ("tests/test_cuda_device.py", "tests/test_cuda_host.py", "tests/test_batch_size.py")
    workers = ("-n", "8") if find_spec("xdist") else ()
    sanitizer = [
        Command(name, (*VALUES, "--small"), limit, 15, ("compute-sanitizer", "--tool", name, *more), alone)
        for name, limit, more in (
            ("memcheck", 120, ("--leak-check", "no")),
            ("racecheck", 120, ()),
            ("initcheck", 90, ()),
        )
    ]
    counters = [
        Command(f"counters-{name}", (*PYTHON, "-c", COUNTED, "cuda", "cuda", name, *sizes), 50, 45, COUNTERS)
        for name, sizes in COUNTED_ON.items()
    ]
    return {
        "facts": [
            Command("device", query, 15, 4, rehearsed=None),
            Command("versions", (*PYTHON, "-c", FACTS), 45, 12, rehearsed=()),
            Command("values", (*VALUES, "--output", str(output / "values.json")), 170),
            Command("times", (*PYTHON, "benchmarks/gpu.py", "--quick", *figures), 90, 60),
            Command("first-tests", (*PYTEST, "-m", "gpu", "--durations=5", *first), 200, 40, rehearsed=collect),
        ],
        "memory": [*sanitizer, *counters],
        "tests": [
            Command("tests", (*PYTEST, *workers, *chosen, "--maxfail=60", *device_tests()), 560, 60, rehearsed=collect)
        ],
        "figures": [
            Command(name, (*PYTHON, "benchmarks/gpu.py", "--only", name, *figures), limit, 40)
            for name, limit in (("forward", 150), ("plan", 150), ("gradient", 100), ("memory", 50), ("host", 50))
        ],
    }


def main() -> None:
    every = list(steps(Path()))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(every)}; all, if none is named")
    parser.add_argument("--output", type=Path, default=ROOT / "gpu-session", help="where all is kept that they say")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU")
    arguments = parser.parse_args()
    if unknown := set(arguments.steps) - set(every):
        parser.error(f"no step is called {', '.join(sorted(unknown))}: there are {', '.join(every)}")
    output: Path = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for step in arguments.steps or every:
        begin = time.perf_counter()
        done = {each.name: carried_out(each, output, arguments.rehearse) for each in steps(output)[step]}
        said = ", ".join(f"{name} {verdict}" for name, verdict in done.items())
        print(f"\n## {step} in {time.perf_counter() - begin:.0f} s: {said}", flush=True)
        failed += [name for name, verdict in done.items() if verdict not in ("ok", "left out")]
    sys.exit(bool(failed))


def carried_out(command: Command, output: Path, is_rehearsal: bool) -> str:
    """Run a command, print the end of what it says, and return how it ended."""
    given = (*command.tool, *command.given)
    if is_rehearsal:
        if command.rehearsed is None:
            return "left out"
        given = rehearsed(command)
    elif shutil.which(given[0]) is None:
        return f"without {given[0]}"
    environment = {
        **os.environ,
        **dict(command.environment),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "GPU_FIGURES": str(output / "kernels"),
        "CUPY_CACHE_DIR": str(output / "cupy"),  # a source is compiled once in a session
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "OMP_NUM_THREADS": "2",
    }
    print(f"\n### {command.name}, at most {command.limit:.0f} s", flush=True)
    path = output / f"{command.name}.txt"
    with path.open("w") as file:
        said = {"stdout": file, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(given, cwd=ROOT, env=environment, start_new_session=True, **said)
        verdict = finished(process, REHEARSED if is_rehearsal else command.limit)
    lines = path.read_text(errors="replace").splitlines()[-command.shown :]
    print("\n".join(line[:200] for line in lines), flush=True)
    return verdict


def finished(process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for a process, and return how it ended; one that takes too long goes, with all that it has started."""
    try:
        return "ok" if process.wait(limit) == 0 else f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        with suppress(subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)  # pytest then says what it has found
            process.wait(GRACE)
        return f"ended after {limit:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def device_tests() -> list[str]:
    """Return the files that may have tests for a device."""
    words = re.compile(r"mark\.gpu|from tests\.torch_cases")
    paths = sorted((ROOT / "tests").glob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if words.search(path.read_text("utf-8"))]


def rehearsed(command: Command) -> tuple[str, ...]:
    """Return what is run in a rehearsal, without the tool."""
    if COUNTED in command.given:
        at = command.given.index(COUNTED)
        algorithm = "chunked_scan" if command.given[at + 3] == "recurrence" else command.given[at + 3]
        return (*command.given[: at + 1], "torch", "cpu", algorithm, "4", "64")
    return (*command.given, *(command.rehearsed or ()))


if __name__ == "__main__":
    main()
