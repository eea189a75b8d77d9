"""Whole trainings in processes of their own: what a collector hears of one, and what two tell each other."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpfracc_nn.selection import WisdomFile

pytest.importorskip("lightning.pytorch")

ROOT = Path(__file__).parents[1]
SETTINGS = {"HPFRACC_NN_SELECTION": "learn", "HPFRACC_NN_WISDOM": "off", "OMP_NUM_THREADS": "1"}
FIRST, OTHERS = "torch/dense", {"torch/fft", "torch/chunked_scan", "torch/recurrence"}

pytestmark = pytest.mark.slow


def started(name: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.training_programs", name, *map(str, arguments)]
    given = {**os.environ, **SETTINGS, **environment}
    return subprocess.Popen(command, cwd=ROOT, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> Any:
    printed, said = process.communicate(timeout=170)
    assert process.returncode == 0, said
    return json.loads(printed.splitlines()[-1])


def in_two(name: str, *arguments: object) -> list[Any]:
    """Return what two processes print that train one model together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    ranks = [started(name, *arguments, RANK=rank, LOCAL_RANK=rank, **common) for rank in ("0", "1")]
    return sorted(map(ended, ranks), key=lambda found: found["rank"])


def test_a_collector_hears_of_a_training_with_switches_and_failures() -> None:
    otlp_receiver = pytest.importorskip("tests.otlp_receiver")
    with otlp_receiver.receiving() as received:
        found = ended(started("collected", received.endpoint))
    facts = [otlp_receiver.attributes(span) for span in received.spans()]
    assert {each["hpfracc.op"] for each in facts} == {"toeplitz"}
    assert {each["hpfracc.site"] for each in facts} == {"layer"}
    assert {each["hpfracc.direction"] for each in facts} <= {"forward", "backward"}
    failed = [each for each in facts if each["hpfracc.decision.reason"] == "fallback"]
    assert {each["error.type"] for each in failed} == {"RuntimeError"}
    tried = [each for each in facts if each["hpfracc.decision.reason"] == "explore"]
    assert tried
    assert all(each["hpfracc.previous_algorithm"] != each["hpfracc.algorithm"] for each in tried)
    selected = received.points("hpfracc.backend.selections")
    assert sum(selected.values()) == found["calls"]["forward"] + found["calls"]["backward"]
    counted = {f"{backend}/{algorithm}": n for (_, algorithm, backend, _), n in failures(received).items()}
    assert counted == {name: sum(errors.values()) for name, errors in found["failures"].items()}
    assert received.points("hpfracc.operation.duration")


def failures(received: Any) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = received.points("hpfracc.backend.failures")
    return found


def test_two_processes_try_different_kernels_and_know_what_both_found(tmp_path: Path) -> None:
    first, second = in_two("exchange", tmp_path)
    assert not set(first["tried"]) & set(second["tried"])
    assert set(first["tried"]) | set(second["tried"]) == OTHERS
    assert set(first["known"]) == set(second["known"]) == {FIRST, *OTHERS}
    assert first["chosen"] == second["chosen"] == "torch/recurrence"
    arms = {arm for _, arm in WisdomFile(tmp_path).read().timings}
    assert arms == {FIRST, *OTHERS}


def test_two_processes_whose_plans_must_not_change_have_the_same() -> None:
    first, second = in_two("deterministic", "")
    assert first["hash"] == second["hash"]
    assert first["said"] == second["said"] == []


def test_a_process_that_lacks_a_kernel_is_told_of() -> None:
    first, second = in_two("deterministic", "numba,torch/chunked_scan")
    assert first["hash"] != second["hash"]
    assert "a kernel has failed or is not installed in one of them" in first["said"][0]
