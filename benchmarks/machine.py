"""The machine in words, the versions of what matters, and which other packages are there to compare with."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch
from timing import processor

VERSIONS = (
    "hpfracc-nn",
    "torch",
    "numpy",
    "scipy",
    "numba",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "lightning",
    "opentelemetry-sdk",
    "scikit-learn",
)


@dataclass(frozen=True)
class Peer:
    """Another package that some script compares with.

    Args:
        package: Its name on the package index.
        module: What is imported.
        compared: What is compared, and by which script.
        is_published: It can be installed with pip.
    """

    package: str
    module: str
    compared: str
    is_published: bool = True

    @property
    def line(self) -> str:
        """Its version, or why it is not there, in a row of a table."""
        if find_spec(self.module) is not None:
            found = _version(self.package) or "from its sources"
        elif self.is_published:
            found = f"absent, skipped; `make peers` or `pip install {self.package}`"
        else:
            found = "absent, skipped; on no package index"
        return f"| {self.package} | {found} | {self.compared} |"


PEERS = (
    Peer("scipy", "scipy", "`fftconvolve`, `product.py`"),
    Peer("differint", "differint", "operators, `product.py`"),
    Peer("pycaputo", "pycaputo", "operators, `product.py`; equations, `solvers.py`"),
    Peer("torchfde", "torchfde", "equations, `solvers.py`", is_published=False),
    Peer("torchsde", "torchsde", "equations with noise, `sde.py`"),
    Peer("diffrax", "diffrax", "equations with noise, `sde.py`, `jax_sde.py`"),
    Peer("fbm", "fbm", "fractional Brownian motion, `noise.py`"),
    Peer("pymittagleffler", "pymittagleffler", "the Mittag-Leffler function, `special.py`"),
    Peer("numfracpy", "numfracpy", "the Mittag-Leffler function, `special.py`"),
    Peer("torch-frft", "torch_frft", "the fractional Fourier transform, `special.py`"),
    Peer("hpfracc", "hpfracc", "operators on JAX, `jax_operators.py`", is_published=False),
    Peer("optax", "optax", "optimizers, `optax_steps.py`"),
    Peer("flax", "flax", "layers, `jax_layers.py`"),
)


def facts() -> dict[str, str]:
    """Return the machine, the system, the commit and the time, in words."""
    return {
        "processor": processor(),
        "cores": f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}",
        "memory": _memory(),
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": f"{_system()}, {platform.machine()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": _commit(),
        "begun": f"{datetime.now(UTC):%d %B %Y, %H:%M} UTC",
        "load before": _load(),
    }


def versions() -> dict[str, str]:
    """Return the version of each package that matters, and of those that are absent that they are."""
    return {name: _version(name) or "absent" for name in VERSIONS}


def is_there(need: str) -> bool:
    """Return whether a module, or a CUDA device, is there."""
    if need == "a CUDA device":
        return torch.cuda.is_available()
    parts = need.split(".")
    return all(find_spec(".".join(parts[:count])) is not None for count in range(1, len(parts) + 1))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory() -> str:
    if not hasattr(os, "sysconf"):
        return "unknown"
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"


def _system() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']} ({platform.system()})"
    except (OSError, KeyError):  # not Linux, or it does not say
        return f"{platform.system()} {platform.release()}"


def _commit() -> str:
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            ", changed since" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown, not a checkout"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} processes, mean of a minute" if hasattr(os, "getloadavg") else "unknown"
