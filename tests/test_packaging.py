"""The metadata that the build, the citation and the change log share, and what runs where a package is not there."""

import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LIBRARIES = {"torch", "jax", "numba", "cuda12", "cuda13", "lightning", "otel", "otlp", "cli", "plot", "data", "sklearn"}
PROMISED = LIBRARIES | {"demo", "examples", "docs", "gallery", "test", "dev", "all"}


def requirements() -> list[str]:
    return [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]


def name_of(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return match[0].lower().replace("_", "-")


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def test_the_promised_extras_are_the_declared_ones():
    assert set(EXTRAS) == PROMISED


def test_the_page_on_installation_says_what_each_extra_is_for():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "installation.md").read_text("utf-8"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == PROMISED


def test_only_four_packages_are_needed_without_extras():
    names = {name_of(line) for line in PROJECT["dependencies"]}
    assert names == {"filelock", "numpy", "platformdirs", "scipy"}


@pytest.mark.parametrize("requirement", requirements())
def test_a_requirement_has_a_lower_bound_and_no_cap(requirement):
    if name_of(requirement) == PROJECT["name"]:
        named = re.search(r"\[(.*)\]", requirement)
        assert named
        assert set(named[1].split(",")) <= set(EXTRAS)
    else:
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?>=[0-9.]+", requirement)


@pytest.mark.parametrize("requirement", requirements())
def test_a_requirement_is_constrained_within_its_bound(requirement):
    if name_of(requirement) != PROJECT["name"]:
        bound, version = requirement.split(">=")[1], constraints()[name_of(requirement)]
        assert numbers(bound) <= numbers(version)


def test_all_holds_every_extra_a_user_can_combine():
    everything = re.search(r"\[(.*)\]", EXTRAS["all"][0])
    assert everything
    assert set(everything[1].split(",")) == LIBRARIES - {"cuda12", "cuda13"}


def test_citation_and_changelog_name_the_version():
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert "\n## [Unreleased]\n" in changelog
    assert version in changelog


def test_the_licence_is_the_one_named():
    assert PROJECT["license"] == "Apache-2.0"
    licence = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License\n                           Version 2.0" in licence
    assert "APPENDIX: How to apply the Apache License" in licence


def test_the_package_carries_its_types():
    assert (ROOT / "hpfracc_nn" / "py.typed").is_file()


def test_every_make_target_is_phony():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    assert targets == set(phony[1].split())
    assert targets >= {"demo", "test", "lint", "bench", "docs", "gpu"}


# Packages that machines lack on which all the rest is there: a base dependency of small use, and two of tests.
ABSENT = ("expecttest", "opentelemetry", "platformdirs")
WITHOUT = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {ABSENT} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import hpfracc_nn
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def run_without(*arguments: str) -> str:
    command = [sys.executable, "-c", WITHOUT, "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_package_and_what_pytest_loads_need_no_absent_package():
    found = run_without("--collect-only", "tests/test_packaging.py", "tests/test_telemetry.py")
    assert "tests/test_packaging.py::" in found
    assert "could not import 'opentelemetry" in found  # said, as what is left out by itself


@pytest.mark.slow
def test_the_whole_suite_is_collected_without_absent_packages():
    pytest.importorskip("torch")
    found = run_without("--collect-only")
    assert "tests/test_torch_hazards.py::" in found  # which needs no more of PyTorch's tests than PyTorch has
    assert "tests/test_torch_opinfo.py::" not in found


@pytest.mark.slow
def test_torch_kernels_are_tested_without_absent_packages():
    pytest.importorskip("torch")
    assert " passed" in run_without("-m", "not slow", "tests/test_torch_kernels.py")
