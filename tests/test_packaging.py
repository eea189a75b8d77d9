"""The metadata that the build, the citation and the change log share."""

import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LIBRARIES = {"torch", "jax", "numba", "cuda12", "cuda13", "lightning", "otel", "otlp", "cli", "plot", "data", "sklearn"}
PROMISED = LIBRARIES | {"demo", "examples", "docs", "test", "dev", "all"}


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


def test_the_first_page_says_what_each_extra_is_for():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE)
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
