"""Memory: what is free under the limits of the system, what a call may take, how many rows fit."""

import importlib
import math
import os
import pathlib

import pytest

from hpfracc_nn.selection import Settings, memory
from hpfracc_nn.selection.memory import SHARE, chunks, free, host_free, limit, limited
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import FakeProbe

GIB = 1 << 30
UNLIMITED = "9223372036854771712"  # what version 1 writes


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def system(tmp_path):
    """Return a function that makes procfs and control groups, and returns what is free there."""
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"

    def make(available, membership, **groups):
        write(proc, meminfo=f"MemTotal:       99999999 kB\nMemAvailable:   {available} kB\nBuffers: 1 kB")
        write(proc / "self", cgroup=membership)
        for path, files in groups.items():
            write(cgroup / path.removeprefix("top").replace("__", "/").strip("/"), **files)
        return host_free(proc, cgroup)

    return make


def test_without_groups_the_available_memory_is_free(system):
    assert system(1000, "0::/") == 1000 * 1024


def test_a_group_of_version_2_leaves_its_limit_less_what_is_used_and_not_a_cache(system):
    job = {"memory__max": 3 * GIB, "memory__current": 2 * GIB, "memory__stat": f"anon 5\ninactive_file {GIB // 4}"}
    assert system(4 << 20, "0::/job", job=job) == GIB + GIB // 4


def test_the_tightest_of_the_groups_around_and_of_ram_counts(system):
    inner = {"memory__max": "max", "memory__current": 7}
    outer = {"memory__max": 2 * GIB, "memory__high": GIB, "memory__current": 24}
    assert system(4 << 20, "0::/outer/inner", outer=outer, outer__inner=inner) == GIB - 24
    assert system(10, "0::/outer/inner") == 10 * 1024


def test_a_group_above_its_limit_leaves_nothing(system):
    assert system(4 << 20, "0::/job", job={"memory__max": GIB, "memory__current": 2 * GIB}) == 0


def test_a_group_of_version_1_is_read_and_its_largest_number_is_no_limit(system):
    mine = {
        "memory__limit_in_bytes": 2 * GIB,
        "memory__usage_in_bytes": GIB,
        "memory__stat": "inactive_file 1\ntotal_inactive_file 512",
    }
    top = {"memory__limit_in_bytes": UNLIMITED, "memory__usage_in_bytes": 0}
    membership = "9:cpu:/x\n4:hugetlb,memory:/mine\n0::/"
    assert system(4 << 20, membership, memory=top, memory__mine=mine) == GIB + 512


def test_an_unlimited_group_leaves_the_available_memory(system):
    top = {"memory__limit_in_bytes": UNLIMITED, "memory__usage_in_bytes": 0}
    assert system(1000, "4:memory:/", memory=top) == 1000 * 1024


@pytest.mark.parametrize("path", ["/the/hosts/own/path", "/../../elsewhere"])
def test_a_path_that_is_not_mounted_leaves_the_group_of_the_mount(system, path):
    assert system(4 << 20, f"0::{path}", top={"memory__max": GIB, "memory__current": 0}) == GIB


def test_a_system_without_procfs_answers_by_its_pages_or_not_at_all(tmp_path, monkeypatch):
    pages = {"SC_AVPHYS_PAGES": 500, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf_names", dict.fromkeys(pages, 0), raising=False)
    monkeypatch.setattr(os, "sysconf", pages.__getitem__, raising=False)
    assert host_free(tmp_path, tmp_path) == 500 * 4096
    monkeypatch.delattr(os, "sysconf_names")
    assert host_free(tmp_path, tmp_path) is None


@pytest.mark.skipif(not pathlib.Path("/proc/meminfo").is_file(), reason="needs procfs")
def test_this_host_has_less_free_than_it_has():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = host_free()
    assert found is not None
    assert 0 < found <= total


@pytest.fixture
def rooms(monkeypatch):
    """Make 1000 bytes free on the host and 2000 on cuda:0; nothing is known of cuda:1."""
    asked = FakeProbe()
    monkeypatch.setattr(asked, "free_memory", {"cuda:0": 2000, "cuda:1": None}.__getitem__)
    monkeypatch.setitem(_probes, "torch", asked)
    monkeypatch.setattr(memory, "host_free", lambda: 1000)


@pytest.mark.usefixtures("rooms")
@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        ("cpu", Settings(), SHARE * 1000),
        ("cpu", Settings(memory_limit=0.25, gpu_memory_limit=7), 250),
        ("cpu", Settings(memory_limit=300), 300),
        ("cpu", Settings(memory_limit="1GiB"), 1000),
        ("cuda:0", Settings(memory_limit=7), SHARE * 2000),
        ("cuda:0", Settings(gpu_memory_limit="1KB"), 1000),
        ("cuda:1", Settings(), None),
        ("cuda:1", Settings(gpu_memory_limit=0.5), None),
        ("cuda:1", Settings(gpu_memory_limit=500), 500),
    ],
)
def test_a_call_may_take_what_the_settings_say_and_never_more_than_is_free(device, settings, expected):
    assert limit("torch", device, settings) == expected


@pytest.mark.usefixtures("rooms")
def test_the_host_is_asked_without_a_probe_and_another_device_needs_one():
    assert free("a framework without a probe", "cpu") == 1000
    with pytest.raises(LookupError, match="no probe for framework"):
        free("a framework without a probe", "cuda:0")


def test_every_probe_knows_what_is_free_on_the_host():
    for framework, module, name in (("numpy", "probe", "NumpyProbe"), ("torch", "device", "TorchProbe")):
        pytest.importorskip(framework)
        probe = importlib.import_module(f"hpfracc_nn.fractional.{framework}.{module}")
        found = getattr(probe, name)().free_memory("cpu")
        assert (found is None) == (host_free() is None)


def test_a_fraction_of_nothing_known_is_no_limit():
    assert limited(0.5, None) is None
    assert limited(5, None) == 5
    assert limited(1.0, 10) == 10


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 64, 1000])
@pytest.mark.parametrize("size", [0, 1, 3.5, 100])
@pytest.mark.parametrize("fixed", [0, 50])
@pytest.mark.parametrize("most", [0, 49, 99, 350, 10_000, None])
def test_chunks_fit_are_as_few_as_can_be_and_nearly_even(rows, size, fixed, most):
    found = chunks(rows, size, most, fixed=fixed)
    if most is None or fixed + rows * size <= most:
        assert found == rows
        return
    largest = max((count for count in range(1, rows + 1) if fixed + count * size <= most), default=0)
    if largest == 0:
        assert found == 0
        return
    number = math.ceil(rows / found)
    assert fixed + found * size <= most
    assert number == math.ceil(rows / largest)
    assert found == math.ceil(rows / number)  # no smaller size makes as few


@pytest.mark.parametrize("bad", [{"rows": -1}, {"bytes_per_row": -1}, {"limit": -1}, {"fixed": -1}])
def test_a_negative_number_of_rows_or_bytes_is_refused(bad):
    name, value = next(iter(bad.items()))
    with pytest.raises(ValueError, match=rf"^chunks\({name}={value}\): needs {name} >= 0\.$"):
        chunks(**{"rows": 1, "bytes_per_row": 1, "limit": 1, **bad})
