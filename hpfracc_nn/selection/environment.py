"""Every environment variable that selection knows, read in one place.

    HPFRACC_NN_FORCE_BACKEND     torch, numba, xla, cuda or numpy
    HPFRACC_NN_FORCE_ALGORITHM   dense, chunked_scan, recurrence, fft, offload; of optimizers foreach, matmul, blocks
    HPFRACC_NN_DISABLE           a comma list of "backend" or "backend/algorithm"
    HPFRACC_NN_DISABLE_<BACKEND> 1 disables that backend, 0 does not
    HPFRACC_NN_CALIBRATION       measured or shipped
    HPFRACC_NN_SELECTION         off, prior, frozen or learn: `Settings.mode`
    HPFRACC_NN_EXPLORE_FRACTION  a number in [0, 0.5]
    HPFRACC_NN_DETERMINISTIC     1 or 0; unset follows the framework
    HPFRACC_NN_MEMORY_LIMIT      of the host: bytes, a fraction in (0, 1], or text such as 4GiB
    HPFRACC_NN_GPU_MEMORY_LIMIT  of every other device
    HPFRACC_NN_OFFLOAD           1: data on the host may be computed on a device and come back; or a list of devices
    HPFRACC_NN_WISDOM            a directory, off (also 0, no, false), or default

A name with this prefix that is not in the list is warned of: it is a misspelling, or of another version.
Names of HPFRACC are honoured too; where both speak of the same thing, the name above wins:

    HPFRACC_FORCE_JAX, _TORCH, _NUMBA    1: force xla, torch, numba
    HPFRACC_DISABLE_JAX, _TORCH, _NUMBA  1: disable xla, torch, numba
    HPFRACC_GPU_MEMORY_LIMIT             as HPFRACC_NN_GPU_MEMORY_LIMIT
    HPFRACC_ENABLE_LEARNING              0: mode prior; 1: mode learn

All are read when a manager is made and by its `reload_env()`, never while a model runs. An
empty value counts as unset.
"""

import difflib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpfracc_nn.selection.registry import algorithms, backends
from hpfracc_nn.selection.settings import (
    CALIBRATIONS,
    MODES,
    MOST_EXPLORED,
    Settings,
    amount,
    between,
    names,
    one_of,
)

PREFIX = "HPFRACC_NN_"
OLD_PREFIX = "HPFRACC_"
OLD_BACKENDS = {"JAX": "xla", "TORCH": "torch", "NUMBA": "numba"}
KNOWN = (
    "FORCE_BACKEND",
    "FORCE_ALGORITHM",
    "DISABLE",
    "CALIBRATION",
    "SELECTION",
    "EXPLORE_FRACTION",
    "DETERMINISTIC",
    "MEMORY_LIMIT",
    "GPU_MEMORY_LIMIT",
    "OFFLOAD",
    "WISDOM",
)
FOREIGN = ("JAX_PLATFORM_NAME", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
_SWITCH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that the environment asks for.

    Args:
        environ: The variables by name; None is the environment of this process.

    Raises:
        ValueError: A variable holds a value, or disables a name, that is not known; or two of the older names
            force different backends.

    Warns:
        UserWarning: A variable begins with HPFRACC_NN_ and is not known.

    Examples:
        >>> settings = from_environment(
        ...     {"HPFRACC_NN_SELECTION": "prior", "HPFRACC_NN_DISABLE": "numba, xla/fft"}
        ... )
        >>> settings.mode, sorted(settings.disabled)
        ('prior', ['numba', 'xla/fft'])
    """
    environ = os.environ if environ is None else environ
    _warn_of_unknown(environ)
    force = _choice(environ, PREFIX + "FORCE_BACKEND", backends())
    said = {
        "force_backend": _old_force(environ) if force is None else force,
        "force_algorithm": _choice(environ, PREFIX + "FORCE_ALGORITHM", algorithms()),
        "disabled": _disabled(environ, force),
        "calibration": _choice(environ, PREFIX + "CALIBRATION", CALIBRATIONS),
        "mode": _mode(environ),
        "explore_fraction": _explore_fraction(environ),
        "deterministic": _switch(environ, PREFIX + "DETERMINISTIC"),
        "memory_limit": _limit(environ, PREFIX + "MEMORY_LIMIT"),
        "gpu_memory_limit": _limit(environ, PREFIX + "GPU_MEMORY_LIMIT", OLD_PREFIX + "GPU_MEMORY_LIMIT"),
        "offload": _offload(environ),
        "wisdom": _wisdom(environ),
    }
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    return Settings(**given)


def shown(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return what `hpfracc-nn info` shows of the environment: None where a variable is unset.

    Every variable of ours or HPFRACC's that is set, and those of JAX and CUDA that decide which devices there are.
    """
    environ = os.environ if environ is None else environ
    ours = sorted(variable for variable in environ if variable.startswith(OLD_PREFIX))
    return {variable: environ.get(variable) for variable in (*ours, *FOREIGN)}


def _text(environ: Mapping[str, str], variable: str) -> str | None:
    return environ.get(variable, "").strip() or None


def _choice(environ: Mapping[str, str], variable: str, allowed: Sequence[str]) -> str | None:
    value = _text(environ, variable)
    if value is not None:
        one_of(variable, value, allowed)
    return value


def _switch(environ: Mapping[str, str], variable: str) -> bool | None:
    value = _text(environ, variable)
    if value is None:
        return None
    one_of(variable, value.lower(), tuple(_SWITCH))
    return _SWITCH[value.lower()]


def _offload(environ: Mapping[str, str]) -> bool | list[str] | None:
    variable = PREFIX + "OFFLOAD"
    value = _text(environ, variable)
    if value is None or value.lower() in _SWITCH or ":" not in value:
        return _switch(environ, variable)
    return [device.strip() for device in value.split(",")]


def _old_force(environ: Mapping[str, str]) -> str | None:
    start = OLD_PREFIX + "FORCE_"
    forced = [name for name in OLD_BACKENDS if _switch(environ, start + name)]
    if len(forced) > 1:
        both = " and ".join(start + name for name in forced)
        raise ValueError(f"{both}: needs at most one of them to be 1; unset the others, or set {PREFIX}FORCE_BACKEND.")
    return OLD_BACKENDS[forced[0]] if forced else None


def _disabled(environ: Mapping[str, str], force: str | None) -> frozenset[str]:
    """Return what is disabled; an older name loses against a newer switch, or force, of the same backend."""
    listed = names(PREFIX + "DISABLE", environ.get(PREFIX + "DISABLE", ""))
    switches = dict(_disable_switches(environ))
    for name, backend in OLD_BACKENDS.items():
        if _switch(environ, f"{OLD_PREFIX}DISABLE_{name}") and backend != force:
            switches.setdefault(backend, True)
    return listed | {backend for backend, is_disabled in switches.items() if is_disabled}


def _disable_switches(environ: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    start = PREFIX + "DISABLE_"
    for variable in sorted(variable for variable in environ if variable.startswith(start)):
        backend = variable[len(start) :].lower()
        if backend not in backends():
            allowed = ", ".join(start + name.upper() for name in backends())
            raise ValueError(f"{variable}={environ[variable]!r}: needs one of the names {allowed}.")
        is_disabled = _switch(environ, variable)
        if is_disabled is not None:
            yield backend, is_disabled


def _mode(environ: Mapping[str, str]) -> str | None:
    mode = _choice(environ, PREFIX + "SELECTION", MODES)
    learns = _switch(environ, OLD_PREFIX + "ENABLE_LEARNING")
    if mode is not None or learns is None:
        return mode
    return "learn" if learns else "prior"


def _wisdom(environ: Mapping[str, str]) -> str | None:
    value = _text(environ, PREFIX + "WISDOM")
    word = "" if value is None else value.lower()
    if word in _SWITCH:
        return "default" if _SWITCH[word] else "off"
    return word if word == "default" else value


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    for variable in sorted(variable for variable in environ if variable.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX)
        if name not in KNOWN and not name.startswith("DISABLE_"):
            known = ", ".join(PREFIX + each for each in difflib.get_close_matches(name, KNOWN, n=1) or KNOWN)
            warnings.warn(f"{variable} is not known and has no effect; known is {known}.", stacklevel=4)


def _explore_fraction(environ: Mapping[str, str]) -> float | None:
    variable = PREFIX + "EXPLORE_FRACTION"
    value = _text(environ, variable)
    if value is None:
        return None
    try:
        fraction = float(value)
    except ValueError:
        raise ValueError(f"{variable}={value!r}: needs a number in [0, {MOST_EXPLORED:g}].") from None
    between(variable, fraction, MOST_EXPLORED)
    return fraction


def _limit(environ: Mapping[str, str], *variables: str) -> str | None:
    """Return the limit in the first variable that is set, as it is written there; the others are checked as well."""
    values = {variable: _text(environ, variable) for variable in variables}
    set_ones = {variable: value for variable, value in values.items() if value is not None}
    for variable, value in set_ones.items():
        amount(variable, value)
    return next(iter(set_ones.values()), None)
