"""What every test shares."""

import collections
import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from hpfracc_nn.selection import plan
from hpfracc_nn.selection.learning import fingerprint, learner
from tests.frameworks import is_there, needed
from tests.seconds import LONG, TABLE, chosen

# What a test asserts must not depend on how fast its machine is today: plans come from the estimate, unless a manager
# is made to learn, and nothing is read from or written to the user's cache.
os.environ.setdefault("HPFRACC_NN_SELECTION", "prior")
os.environ.setdefault("HPFRACC_NN_WISDOM", "off")
# JAX reads it once: four devices, over which batches are sharded. Most of the tests' time is XLA's compilation, two
# thirds of that what makes programs faster that run once here; `make test-all` leaves it in. A flag that XLA does not
# know ends the process: these are asked of the version that they were tried with.
FLAGS = "--xla_force_host_platform_device_count=4"
if importlib.util.find_spec("jaxlib") and importlib.metadata.version("jaxlib").startswith("0.10."):
    FLAGS += " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", FLAGS)
# Nor does it take three quarters of a CUDA device for each process of a run with several.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# JAX's tests spend most of their time on compiling what they compiled before: it is kept, for this processor.
CACHE = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax" / fingerprint.digest(fingerprint.facts())
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Of a test that takes long the fast suite runs some cases, always the same ones: which follows from their names.
SECONDS = json.loads(TABLE.read_text())
gc.disable()  # until all tests are collected


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions take real time where the times of calls are made up: the one is not held against the other.

    And the times of calls count even where a machine that does much else has interrupted each of them.
    """
    monkeypatch.setattr(learner, "FREE", math.inf)
    monkeypatch.setattr(plan, "PREEMPTED", 0.0)


@pytest.fixture(autouse=True)
def unpromoted(request: pytest.FixtureRequest) -> Iterator[None]:
    """JAX refuses types and ranks that are promoted unasked, as users can make it do: the package promotes none."""
    if not request.path.name.startswith(("test_jax_", "test_flax_")):
        yield
        return
    jax = sys.modules["jax"]
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """What JAX compiled for one module serves few others, and all of it together takes gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], ModuleType]]:
    """Import a benchmark's module as the script itself does: from its own folder."""
    folder = str(pathlib.Path(__file__).parents[1] / "benchmarks")
    before = set(sys.modules)
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
            del sys.modules[name]


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Leave out what needs a package that is not installed: a framework, or what PyTorch's own generic tests import."""
    is_module = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_module and not all(map(is_there, needed(collection_path))) else None


def has_cuda() -> bool:
    """Return whether a CUDA device can be used; loads torch only where there is a driver."""
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        return False
    return importlib.import_module("torch").cuda.is_available()


def pytest_collection_finish() -> None:
    """Frameworks and tests are there to stay: a collector that passes over them spares a quarter of the time.

    What a test leaves is looked at in larger lots: a look at 700 new objects finds little and costs as much.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    fast: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            fast[f"{item.path.stem}::{item.name.split('[')[0]}"].append(item)
    for name in SECONDS.keys() & fast.keys():
        fit, is_long = chosen(len(fast[name]), SECONDS[name]), SECONDS[name] > LONG
        for place, item in enumerate(sorted(fast[name], key=lambda item: zlib.crc32(item.nodeid.encode()))):
            if place >= fit:
                item.add_marker(pytest.mark.slow)
            elif is_long:
                item.add_marker(pytest.mark.long)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
