"""What tells one machine from another: facts that are cheap, and the same whatever a process has imported."""

import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from hpfracc_nn.selection.learning import fingerprint
from hpfracc_nn.selection.learning.fingerprint import PACKAGES, differing, digest, facts

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ("torch", "jax", "numba", "cupy", "scipy")


def test_the_facts_survive_json_and_name_the_file_in_16_digits():
    found = facts()
    assert json.loads(json.dumps(found)) == found
    assert len(digest(found)) == 16
    assert set(digest(found)) <= set("0123456789abcdef")
    assert digest(dict(reversed(found.items()))) == digest(found) == digest(facts())


def test_each_fact_changes_the_digest():
    found = facts()
    others = {digest({**found, name: "another"}) for name in found}
    assert len(others | {digest(found)}) == len(found) + 1
    assert differing(found, {**found, "cpu": "another", "new": 1}) == ["cpu", "new"]


def test_versions_are_those_of_the_metadata():
    found = facts()["packages"]
    for package in PACKAGES:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            assert package not in found
        else:
            assert found[package] == version
    assert "numpy" in found


def test_it_imports_no_framework_and_does_not_depend_on_what_was_imported():
    source = (
        "import sys; from hpfracc_nn.selection.learning.fingerprint import digest, facts; "
        f"print(digest(facts()), [name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{digest(facts())} []\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity mask")
def test_cores_are_those_of_the_affinity_mask():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert facts()["cores"] == 1
    finally:
        os.sched_setaffinity(0, before)
    assert facts()["cores"] == len(before)


X86 = "processor\t: 0\nmodel name\t: Some Xeon\nflags\t\t: sse avx\n\nprocessor\t: 1\nmodel name\t: Some other\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n"


@pytest.mark.parametrize(
    ("text", "cpu", "flags"), [(X86, "Some Xeon", "avx sse"), (ARM, "0x41 0xd40", "asimd fp"), ("\n", None, "")]
)
def test_the_processor_is_the_first_one_that_the_system_describes(monkeypatch, tmp_path, text, cpu, flags):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(fingerprint, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: None)
    assert (facts()["cpu"], facts()["flags"]) == (cpu, flags)


def test_caches_gpus_and_driver_are_read_from_the_systems_files(monkeypatch, tmp_path):
    for index, (level, size) in enumerate([("1", "32K"), ("2", "1024K"), ("3", "32768K")]):
        cache = tmp_path / "cpu" / "cpu0" / "cache" / f"index{index}"
        cache.mkdir(parents=True)
        (cache / "level").write_text(f"{level}\n")
        (cache / "size").write_text(f"{size}\n")
    for number, model in enumerate(["Z100", "A100"]):
        gpu = tmp_path / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t NVIDIA {model}\nIRQ:   1\n")
    (tmp_path / "nvidia" / "version").write_text("NVRM version: 550.54\nGCC version: 12\n")
    monkeypatch.setattr(fingerprint, "CACHES", tmp_path / "cpu")
    monkeypatch.setattr(fingerprint, "DRIVER", tmp_path / "nvidia")
    found = facts()
    assert found["caches"] == {"L2": "1024K", "L3": "32768K"}
    assert found["gpus"] == ["NVIDIA A100", "NVIDIA Z100"]
    assert found["driver"] == "NVRM version: 550.54"


def test_what_a_system_does_not_tell_is_empty(monkeypatch, tmp_path):
    for name in ("CPUINFO", "CACHES", "DRIVER"):
        monkeypatch.setattr(fingerprint, name, tmp_path / "none")
    found = facts()
    assert (found["flags"], found["caches"], found["gpus"], found["driver"]) == ("", {}, [], "")
