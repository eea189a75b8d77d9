"""The compiled core in other processes: other processors, no cache, no Numba, poisoned memory, forks."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("needs Numba", allow_module_level=True)

import numpy as np
from numba.core.registry import cpu_target

from hpfracc_nn.fractional.numba import compiled, recurrence

ROOT = Path(__file__).parents[1]
CORE = ("tests/test_numba_core.py", "-k", "few_signals or lanes_that_lack or fit_together or not_finite")
POISON = """
import numpy as np
from hpfracc_nn.fractional.numba import recurrence, side_by_side
from hpfracc_nn.fractional.numba.compiled import inner
@inner
def room(count, like):
    return np.full(count, np.nan, like.dtype)
recurrence.room = side_by_side.room = room
"""
DERIVATIVE = """
import warnings, torch
import hpfracc_nn as fnn
from hpfracc_nn.fractional.torch.kernels import numba_recurrence
from hpfracc_nn.selection import BackendManager, Settings, Workload
x = torch.linspace(0, 1, 200, dtype=torch.float64)[None]
right = fnn.derivative(x, fnn.Caputo(0.5), manager=BackendManager(Settings(force_backend="torch", mode="prior")))
work = Workload("toeplitz", "torch", rows=64, n=4096, exponentials=30)
"""
ABSENT = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "numba" else found(name, package)
sys.modules["numba"] = None
"""
BY_NUMBA = """
manager = BackendManager(Settings(force_backend="numba", mode="prior"))
assert torch.allclose(fnn.derivative(x, fnn.Caputo(0.5), manager=manager), right, atol=1e-12, rtol=0)
"""


def run(*arguments: str, timeout: int = 170, **environment: str) -> str:
    """Return what Python prints when it ends well, in a process of its own at the root."""
    found = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    return found.stdout + found.stderr


def core_passes(before: str = "", cache: Path | None = None, **environment: str) -> str:
    """Run the tests of the core in another process, after the statements `before`."""
    program = f"{before}import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    return run("-c", program, "-q", "-p", "no:cacheprovider", "-m", "not slow", *CORE, timeout=600, **environment)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="protects pages by mprotect")
def test_nothing_outside_of_an_array_is_touched() -> None:
    run("-m", "tests.numba_guarded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "features"),
    [("haswell", "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+sse4.2"), ("generic", "")],
    ids=["AVX2", "no fused multiplication"],
)
def test_narrower_vectors_compute_the_same_operator(name: str, features: str, tmp_path: Path) -> None:
    before = "from hpfracc_nn.fractional.numba.panels import VECTOR; assert VECTOR == 32, VECTOR; "
    core_passes(before, tmp_path, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features)


@pytest.mark.parametrize(("features", "width"), [("+avx,+avx2,+fma", 32), ("+avx,+avx2,+avx512f,+fma", 64)])
def test_vectors_are_those_of_the_processor_that_is_compiled_for(features: str, width: int) -> None:
    check = f"from hpfracc_nn.fractional.numba.panels import VECTOR; assert VECTOR == {width}, VECTOR"
    run("-c", check, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES=features)


@pytest.mark.slow
def test_no_index_is_outside_of_its_array(tmp_path: Path) -> None:
    core_passes(cache=tmp_path, NUMBA_BOUNDSCHECK="1")


@pytest.mark.slow
def test_scratch_is_never_read_before_it_is_written(tmp_path: Path) -> None:
    core_passes(POISON, tmp_path, MALLOC_PERTURB_="1")  # and what glibc returns is filled with -1.7e38


def test_code_is_kept_for_the_sources_that_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    codegen = cpu_target.target_context.codegen()
    kept = recurrence.forward._cache
    before = kept._index_key((), codegen)
    monkeypatch.setattr(compiled, "sources", lambda: "others")
    assert kept._index_key((), codegen) != before
    assert codegen.magic_tuple() in before  # and for the processor, whose features say how wide vectors are


@pytest.mark.slow
def test_without_a_directory_to_write_to_every_process_compiles_and_says_so(tmp_path: Path) -> None:
    nowhere = tmp_path / "a file"
    nowhere.write_text("")
    # A path below a file cannot be made, not even by root; the locators of the package and the user are left out.
    found = run(
        "-c",
        DERIVATIVE + BY_NUMBA,
        NUMBA_CACHE_DIR=str(nowhere / "below"),
        NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator",
    )
    assert "hpfracc_nn: compiled code cannot be kept on disk" in found
    assert "set NUMBA_CACHE_DIR to a directory that can be written to" in found


def test_a_disk_that_is_full_costs_only_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    @compiled.entry
    def double(x):  # type: ignore[no-untyped-def]
        x[0] *= 2

    monkeypatch.setattr(double._cache._cache_file, "_save_index", full)
    x = np.ones(1)
    with pytest.warns(RuntimeWarning, match=r"cannot be kept on disk.*No space left on device"):
        double(x)
    double(x)
    assert x[0] == 4


REFUSALS = {
    "not installed": (ABSENT, "Numba is not installed; pip install 'hpfracc-nn[numba]'"),
    "switched off": ("os.environ['NUMBA_DISABLE_JIT'] = '1'", "Numba compiles nothing where NUMBA_DISABLE_JIT is set"),
    "does not load": (
        "sys.modules['numba.core.types'] = None",
        "Numba cannot be imported (import of numba.core.types halted",
    ),
}
LATER = ["switched off", "does not load"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["not installed", *(pytest.param(how, marks=pytest.mark.slow) for how in LATER)])
def test_where_numba_is_no_use_the_others_compute_and_it_says_why(how: str) -> None:
    before, reason = REFUSALS[how]
    program = f"""
import os, sys
{before}
{DERIVATIVE}
assert torch.allclose(fnn.FractionalLayer(0.5)(x), right, atol=1e-12, rtol=0)
assert torch.allclose(torch.as_tensor(fnn.derivative(x.numpy(), fnn.Caputo(0.5))), right, atol=1e-12, rtol=0)
manager = BackendManager(Settings(mode="prior", calibration="shipped"))
assert manager.plan(work).backend != "numba"
print(manager.explain(work))
"""
    (line,) = (line for line in run("-c", program).splitlines() if "numba/recurrence" in line)
    assert f"refused: {reason}" in line
