"""Every environment variable that selection knows, read in one place.

    HPFRACC_NN_FORCE_BACKEND     torch, numba, xla, cuda or numpy
    HPFRACC_NN_FORCE_ALGORITHM   dense, chunked_scan, recurrence or fft
    HPFRACC_NN_DISABLE           a comma list of "backend" or "backend/algorithm"
    HPFRACC_NN_DISABLE_<BACKEND> 1 disables that backend, 0 does not
    HPFRACC_NN_CALIBRATION       measured or shipped

They are read when a manager is made and by its `reload_env()`, never while a model runs. An
empty value counts as unset.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

from hpfracc_nn.selection.machine import Calibration
from hpfracc_nn.selection.registry import algorithms, backends

PREFIX = "HPFRACC_NN_"
CALIBRATIONS: tuple[str, ...] = get_args(Calibration)
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


@dataclass(frozen=True)
class Settings:
    """What the user said about the choice.

    Args:
        force_backend: Only kernels of this backend may run.
        force_algorithm: Only kernels of this algorithm may run.
        disabled: Backends, or "backend/algorithm", that may not run.
        calibration: "measured" times this machine once; "shipped" uses constants, so that the
            plans are the same everywhere.
        sample: Whether live calls are timed now and then.

    Raises:
        ValueError: A name is not known.
    """

    force_backend: str | None = None
    force_algorithm: str | None = None
    disabled: frozenset[str] = frozenset()
    calibration: Calibration = "measured"
    sample: bool = True

    def __post_init__(self) -> None:
        if self.force_backend is not None:
            _check("force_backend", self.force_backend, backends())
        if self.force_algorithm is not None:
            _check("force_algorithm", self.force_algorithm, algorithms())
        for name in sorted(self.disabled):
            _check_disabled("disable", name)
        _check("calibration", self.calibration, CALIBRATIONS)
        if not isinstance(self.sample, bool):
            raise ValueError(f"sample={self.sample!r}: needs one of True, False.")

    @property
    def forced(self) -> str:
        """The force in words, "" where there is none."""
        forces = {"force_backend": self.force_backend, "force_algorithm": self.force_algorithm}
        return " and ".join(f"{name}={value!r}" for name, value in forces.items() if value is not None)

    def disables(self, backend: str, algorithm: str) -> bool:
        return backend in self.disabled or f"{backend}/{algorithm}" in self.disabled

    def admits(self, backend: str, algorithm: str) -> bool:
        """Return whether the force, if any, leaves this kernel."""
        return self.force_backend in (None, backend) and self.force_algorithm in (None, algorithm)


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that the environment asks for.

    Raises:
        ValueError: A variable holds a value, or disables a name, that is not known.
    """
    environ = os.environ if environ is None else environ
    calibration = _choice(environ, "CALIBRATION", CALIBRATIONS) or "measured"
    return Settings(
        force_backend=_choice(environ, "FORCE_BACKEND", backends()),
        force_algorithm=_choice(environ, "FORCE_ALGORITHM", algorithms()),
        disabled=frozenset({*_disable_list(environ), *_disable_switches(environ)}),
        calibration=cast(Calibration, calibration),
    )


def names(listed: str | Iterable[str] | None) -> frozenset[str]:
    """Return the names in a comma list, or in any iterable of names."""
    if listed is None:
        return frozenset()
    parts = listed.split(",") if isinstance(listed, str) else listed
    return frozenset(part.strip() for part in parts if part.strip())


def _choice(environ: Mapping[str, str], suffix: str, allowed: Sequence[str]) -> str | None:
    value = environ.get(PREFIX + suffix, "").strip()
    if value:
        _check(PREFIX + suffix, value, allowed)
    return value or None


def _disable_list(environ: Mapping[str, str]) -> frozenset[str]:
    disabled = names(environ.get(PREFIX + "DISABLE"))
    for name in sorted(disabled):
        _check_disabled(PREFIX + "DISABLE", name)
    return disabled


def _disable_switches(environ: Mapping[str, str]) -> Iterator[str]:
    start = PREFIX + "DISABLE_"
    for variable in sorted(variable for variable in environ if variable.startswith(start)):
        backend, value = variable[len(start) :].lower(), environ[variable].strip().lower()
        if backend not in backends():
            allowed = ", ".join(start + name.upper() for name in backends())
            raise ValueError(f"{variable}={environ[variable]!r}: needs one of the names {allowed}.")
        if value:
            _check(variable, value, tuple(_SWITCH))
        if _SWITCH.get(value, False):
            yield backend


def _check(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: needs one of {', '.join(allowed)}.")


def _check_disabled(name: str, value: str) -> None:
    backend, slash, algorithm = value.partition("/")
    if backend not in backends() or (slash and algorithm not in algorithms()):
        raise ValueError(
            f"{name}={value!r}: needs a backend ({', '.join(backends())}), alone or followed by a slash "
            f"and an algorithm ({', '.join(algorithms())})."
        )
