"""Which machine this is, and which versions: all that a time depends on, found without importing a framework.

These facts must not depend on what a process has imported so far, or two processes of one machine would not share what
they learn. So versions come from the packages' metadata and GPUs from the driver's own files, never from a probe.
"""

import hashlib
import importlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1  # version of the wisdom file's format: another version is another file
PACKAGES = (
    "hpfracc-nn",
    "numpy",
    "scipy",
    "torch",
    "numba",
    "llvmlite",
    "jax",
    "jaxlib",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "mkl",
)
CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu")
DRIVER = Path("/proc/driver/nvidia")

_MODEL = ("model name", "CPU implementer", "CPU part")  # the latter two on ARM, which has no name
_FLAGS = ("flags", "Features")


def facts() -> dict[str, Any]:
    """Return what times depend on here, as JSON can hold it; it takes a few milliseconds.

    cpu, flags, cores (those that this process may use), caches (bytes as the system writes them, such as 1024K), gpus
    and their driver, architecture, system, python, blas (NumPy's) and the versions of those `PACKAGES` that are
    installed. What the system does not tell is empty.
    """
    cpu = _first_processor()
    return {
        "schema": SCHEMA,
        "cpu": " ".join(cpu[name] for name in _MODEL if name in cpu) or platform.processor(),
        "flags": " ".join(sorted({flag for name in _FLAGS for flag in cpu.get(name, "").split()})),
        "cores": cores(),
        "caches": _caches(),
        "gpus": _gpus(),
        "driver": _first_line(DRIVER / "version"),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "blas": _blas(),
        "packages": _versions(PACKAGES),
    }


def digest(facts: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that differ where `facts` do."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that differ, in order."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def cores() -> int | None:
    """Return how many cores this process may use, None where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _first_processor() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo, which the system writes core by core as it is read."""
    found: dict[str, str] = {}
    try:
        with CPUINFO.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                found[name.strip()] = value.strip()
    except OSError:
        pass  # not Linux
    return found


def _caches() -> dict[str, str]:
    """Return the sizes of the first core's caches, such as `{'L2': '1024K', 'L3': '32768K'}`; {} where unknown."""
    sizes = {}
    for index in sorted(CACHES.glob("cpu0/cache/index*")):
        level = _first_line(index / "level")
        if level in ("2", "3"):
            sizes[f"L{level}"] = _first_line(index / "size")
    return sizes


def _gpus() -> list[str]:
    models = []
    for information in DRIVER.glob("gpus/*/information"):
        name, _, model = _first_line(information).partition(":")
        if name == "Model":
            models.append(model.strip())
    return sorted(models)


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return lines.readline().strip()
    except OSError:
        return ""  # the system does not tell


def _blas() -> str:
    built: Any = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', '')} {blas.get('version', '')}".strip()


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = _version(metadata.distribution(package))
        except metadata.PackageNotFoundError:
            continue
    return found


def _version(distribution: metadata.Distribution) -> str:
    """Return a package's version without parsing all of its metadata, which takes up to 3 ms if it holds a licence."""
    for line in (distribution.read_text("METADATA") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Version":
            return value.strip()
        if not line:
            break
    return distribution.version


def energy_refusal() -> str | None:
    """Return why energy cannot be read on this machine, or None where every visible GPU reports its energy.

    To find out, pynvml is imported, and each GPU asked for its counter of energy, which Volta and later have.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        if error.name != "pynvml":
            raise
        return "the package pynvml is not installed (pip install nvidia-ml-py)"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML does not start ({error})"
    try:
        count = nvml.nvmlDeviceGetCount()
        for index in range(count):
            nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return f"a GPU does not tell its energy ({error})"
    finally:
        nvml.nvmlShutdown()
    return None if count else "NVML knows no GPU"
