"""A manager at work for long: right results, tables within their bounds, nothing left over, no deadlock."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpfracc_nn.selection import WisdomFile
from tests.frameworks import is_there

pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
CALLS = 600  # of each of four threads in a round
LONGEST = 600  # seconds, of a machine that does much else
GROWN = 512 * 1024  # bytes from the second round on: 75 for each call, less than anything that is kept of one
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def started(directory: Path, seed: int, telemetry: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.soak_program", str(directory), str(seed), str(CALLS), telemetry]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HPFRACC_NN_SELECTION": "learn"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> Any:
    out, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, errors[-8000:]
    return json.loads(out)


@pytest.fixture(scope="module")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes found that learnt at the same time, with one file: one told OpenTelemetry, one did not."""
    directory = tmp_path_factory.mktemp("wisdom")
    can_tell = is_there("opentelemetry") and is_there("opentelemetry.sdk")
    processes = [started(directory, 0, "off"), started(directory, 1, "on" if can_tell else "off")]
    try:
        found = [finished(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert WisdomFile(directory).read().timings
    return found


@needs_fork
@pytest.mark.slow
def test_every_result_is_the_dense_one_whatever_fails_or_is_changed_meanwhile(soaks: list[Any]) -> None:
    for soak in soaks:
        assert soak["wrong"] == []
        assert soak["calls"] == 4 * CALLS * len(soak["held"])
        assert soak["failures"] > 10


@needs_fork
@pytest.mark.slow
def test_no_table_grows_beyond_its_bound(soaks: list[Any]) -> None:
    for soak in soaks:
        beyond = {name: (size, most) for name, (size, most) in soak["sizes"].items() if size > most}
        assert beyond == {}


@needs_fork
@pytest.mark.slow
def test_no_memory_thread_or_file_is_left_over(soaks: list[Any]) -> None:
    for soak in soaks:
        first, last = soak["held"][1], soak["held"][-1]  # caches and tables fill in the first
        assert (last["threads"], last["files"]) == (first["threads"], first["files"])
        assert last["bytes"] - first["bytes"] < GROWN
