"""Check a release end to end: names, versions, dates, the archives, and the wheel in an environment of its own.

Run:  python tests/release.py [--tag vX.Y.Z]    after `make build`, or by `make release-check`

With a tag the change log's section of that version must be dated; without one the check says what a tag would need.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SMOKE = """
import numpy as np
import hpfracc_nn as fnn
from hpfracc_nn.fractional import exact

t = np.linspace(0, 1, 101)
error = np.abs(fnn.derivative(t**2, fnn.Caputo(0.5), dt=0.01) - exact.power(t, 2.0, fnn.Caputo(0.5))).max()
assert error < 1e-3, error
assert abs(fnn.mittag_leffler(-1.0, 0.5) - 0.42758357615580700) < 1e-14
assert np.allclose(fnn.fdiff(fnn.fdiff(t, 0.4), -0.4), t)
for name in {names!r}:
    assert name in dir(fnn), name
print(fnn.__version__)
"""


def dated(version: str) -> str | None:
    """Return the date of a version's section of the change log."""
    found = re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$", changelog(), re.MULTILINE)
    return found[1] if found else None


def changelog() -> str:
    """Return the change log."""
    return (ROOT / "CHANGELOG.md").read_text("utf-8")


def faults_of_text(version: str, tag: str | None) -> list[str]:
    """Return what is wrong with versions, dates and the list of names."""
    sys.path.insert(0, str(ROOT))
    from tests.public_names import LIST, public_names

    found = []
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}, and pyproject.toml says {version}")
    if dated(version) is None:
        found.append(f"CHANGELOG.md has no line '## [{version}] - YYYY-MM-DD'")
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    if f"\nversion: {version}\n" not in citation:
        found.append(f"CITATION.cff is not of version {version}")
    if f"\ndate-released: {dated(version)}\n" not in citation:
        found.append("CITATION.cff has not the change log's date as date-released")
    if set(LIST.read_text("utf-8").split()) != public_names():
        found.append("the list of public names is not that of the package: python tests/public_names.py")
    if f"version {version}" not in (ROOT / "docs" / "validation.md").read_text("utf-8"):
        found.append(f"docs/validation.md is not of version {version}: make validation")
    return found


def faults_of_archives(version: str) -> list[str]:
    """Return what is missing in dist/, or too much."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    (source,) = (ROOT / "dist").glob("*.tar.gz")
    inside = zipfile.ZipFile(wheel).namelist()
    found = [f"{each.name} is not of version {version}" for each in (wheel, source) if f"-{version}" not in each.name]
    found += [f"{wheel.name} has {name}" for name in inside if name.startswith(("tests/", "docs/", "benchmarks/"))]
    if "hpfracc_nn/py.typed" not in inside or not any(name.endswith("licenses/LICENSE") for name in inside):
        found.append(f"{wheel.name} lacks py.typed or the licence")
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    found += [
        f"{source.name} lacks {name}" for name in ("CHANGELOG.md", "LICENSE", "pyproject.toml") if name not in names
    ]
    return found


def faults_of_installed(version: str) -> list[str]:
    """Return what is wrong with the wheel in a fresh environment, outside of the checkout."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    names = sorted(line.partition(".")[2] for line in public_of_base())
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(pathlib.Path(folder, "bin", "python"))
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--constraint", str(ROOT / "constraints.txt"), str(wheel)], check=True)
        said = subprocess.run(
            [python, "-c", SMOKE.replace("{names!r}", repr(names))], cwd=folder, capture_output=True, text=True
        )
    if said.returncode:
        return [f"the wheel does not work: {said.stderr.strip().splitlines()[-1]}"]
    return [] if said.stdout.strip() == version else [f"the wheel says that it is {said.stdout.strip()}"]


def public_of_base() -> list[str]:
    """Return the listed names of the package itself."""
    listed = (ROOT / "tests" / "reference" / "public_names.txt").read_text("utf-8").split()
    return [name for name in listed if name.count(".") == 1]


def main() -> None:
    """Print what is wrong, and exit with 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tag", help="of the release, such as v0.1.0")
    arguments, version = parser.parse_args(), PROJECT["version"]
    faults = faults_of_text(version, arguments.tag) + faults_of_archives(version) + faults_of_installed(version)
    print("\n".join(faults) or f"{version}, dated {dated(version)}: nothing is wrong")  # noqa: T201
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
