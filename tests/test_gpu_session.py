"""The session on a device, rehearsed on the CPU: each step runs within its limit, and what is ended loses nothing."""

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).parents[1]
STEPS = ("facts", "memory", "tests", "figures")
LONGEST = 600  # seconds that a step may take
CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="a source distribution carries no benchmarks"
)
Load = Callable[[str], ModuleType]


def test_every_step_ends_within_ten_minutes(load: Load, tmp_path: pathlib.Path) -> None:
    session = load("gpu_session")
    steps = session.steps(tmp_path)
    assert tuple(steps) == STEPS
    for commands in steps.values():
        assert sum(command.limit + session.GRACE for command in commands) <= LONGEST
    names = [command.name for commands in steps.values() for command in commands]
    assert len(set(names)) == len(names)


def test_sanitizers_see_each_tensor_alone(load: Load, tmp_path: pathlib.Path) -> None:
    under = [each for each in load("gpu_session").steps(tmp_path)["memory"] if each.tool[0] == "compute-sanitizer"]
    assert {each.name for each in under} == {"memcheck", "racecheck", "initcheck"}
    assert all(dict(each.environment)["PYTORCH_NO_CUDA_MEMORY_CACHING"] == "1" for each in under)


def test_every_file_with_tests_for_a_device_is_run(load: Load) -> None:
    found = load("gpu_session").device_tests()
    assert {"tests/test_cuda_device.py", "tests/test_torch_kernels.py", "tests/test_noise.py"} <= set(found)
    assert "tests/test_selection_policy.py" not in found


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_rehearsed(step: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "benchmarks/gpu_session.py", step, "--rehearse", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.splitlines()[-1]
    assert summary.startswith(f"## {step} in ")
    assert " ok" in summary
    if step == "facts":
        cases = json.loads((tmp_path / "values.json").read_text("utf-8"))
        assert len(cases) >= 60
        assert not any(case["fault"] for case in cases)
        assert "first-tests ok" in summary
        assert "cuda/chunked_scan refuses: " in (tmp_path / "versions.txt").read_text("utf-8")
    if step == "figures":
        names = {path.stem for path in (tmp_path / "figures").glob("*.json")}
        assert names == {"gpu-forward", "gpu-plan", "gpu-gradient", "gpu-memory", "gpu-host"}


def test_a_command_that_takes_too_long_goes_with_what_it_started(load: Load, tmp_path: pathlib.Path) -> None:
    session = load("gpu_session")
    command = session.Command("late", (sys.executable, "-S", "-c", CHILD), 1.5)
    assert session.carried_out(command, tmp_path, False) == "ended after 2 s"
    started = int((tmp_path / "late.txt").read_text("utf-8").split()[0])
    assert is_gone(started)
    assert session.carried_out(session.Command("wrong", (sys.executable, "-c", "1 / 0"), 30), tmp_path, False) == (
        "ended with 1"
    )
    absent = session.Command("absent", (sys.executable,), 30, tool=("no-such-tool",))
    assert session.carried_out(absent, tmp_path, False) == "without no-such-tool"


def test_a_table_that_is_ended_half_way_has_its_lines(load: Load, tmp_path: pathlib.Path) -> None:
    results = load("results")
    table = results.Table("half", "Two lines of three.", {"n": ("n", "")}, folder=tmp_path)
    for n in (1, 2):
        table.add(n=n)
        assert [record["n"] for record in json.loads((tmp_path / "half.json").read_text("utf-8"))["records"]] == list(
            range(1, n + 1)
        )
    assert (tmp_path / "half.md").read_text("utf-8").endswith("| 1 |\n| 2 |\n")
    assert not list(tmp_path.glob("*.part"))


def is_gone(number: int) -> bool:
    """Whether there is no process of a number, or is none soon: whoever has taken it over must notice its end."""
    for _ in range(250):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False
