"""The user's settings of the choice of kernels, from `configure` or the environment, checked where they are made."""

import difflib
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, cast, get_args

from hpfracc_nn.errors import as_float
from hpfracc_nn.selection.learning import fingerprint
from hpfracc_nn.selection.machine import Calibration
from hpfracc_nn.selection.registry import algorithms, backends, is_elsewhere, probe_of
from hpfracc_nn.selection.workload import is_host

Mode = Literal["off", "prior", "frozen", "learn"]
Objective = Literal["latency", "memory", "energy"]
Limit = int | float | str
Weights = tuple[tuple[Objective, float], ...]

CALIBRATIONS: tuple[str, ...] = get_args(Calibration)
MODES: tuple[str, ...] = get_args(Mode)
OBJECTIVES: tuple[str, ...] = get_args(Objective)
MOST_EXPLORED = 0.5
DEFAULT, OFF = "default", "off"

_UNITS = {
    "B": 1,
    **{letter + "B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{letter + "iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_BYTES = {unit.lower(): size for unit, size in _UNITS.items()}
_AMOUNTS = (
    f"a whole number of bytes, a fraction in (0, 1], or text such as '4GiB', with one of the units {', '.join(_UNITS)}."
)
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e\d+)?\s*([a-z]*)", re.IGNORECASE)

_DEVICE = re.compile(r"[a-z]+:(0|[1-9][0-9]*)")


class SettingsChanges(TypedDict, total=False):
    """The arguments of `configure`, all of them by name; None restores the default of one."""

    force_backend: str | None
    force_algorithm: str | None
    disable: str | Iterable[str] | None
    calibration: Calibration | None
    sample: bool | None
    mode: Mode | None
    explore_fraction: float | None
    switch_margin: float | None
    objective: Objective | Mapping[str, float] | None
    deterministic: bool | None
    memory_limit: Limit | None
    gpu_memory_limit: Limit | None
    offload: bool | Sequence[str] | None
    wisdom: str | os.PathLike[str] | None


@dataclass(frozen=True)
class Settings:
    """What the user said about the choice.

    Args:
        force_backend: Only kernels of this backend may run, in each operation that has one.
        force_algorithm: Only kernels of this algorithm may run, in each operation that has one.
        disabled: Backends, or "backend/algorithm", that may not run.
        calibration: "measured" times this machine once; "shipped" uses constants, so that the
            plans are the same everywhere.
        sample: Whether live calls are timed now and then.
        mode: What may change a choice: "learn" the estimate, what was learnt before, and live calls; "frozen" no
            live calls; "prior" the estimate alone; "off" nothing, the first kernel that accepts is taken.
        explore_fraction: Part of the time, in [0, 0.5], that may go into trying other kernels.
        switch_margin: By which part, in [0, 1], another kernel must be better to replace the present one.
        objective: What a good choice has little of: "latency", "memory" or "energy" (joules, by NVML), or
            weights of several, such as {"latency": 1, "memory": 0.5}. Weights are kept as pairs.
        deterministic: Whether the same workload must have the same plan on every run; None follows the
            framework, see `is_deterministic`.
        memory_limit: The most that one call may take of the host's memory: bytes, a fraction in (0, 1] of what
            is free when it is asked for, or text such as "4GiB"; None is `memory.SHARE`.
        gpu_memory_limit: The same for every device that is not the host.
        offload: Whether data on the host may be computed on a device and come back, where that is estimated to be
            faster: on the framework's current one, or on all that are listed, such as ("cuda:0", "cuda:1").
        wisdom: Where what was learnt is kept: "default" (the user's cache), "off" (nowhere) or the path of a
            directory; a relative one is made absolute.

    Raises:
        ValueError: A name is not known, a number out of range, or energy cannot be read here.
        TypeError: A value is of another type.

    Examples:
        >>> settings = Settings(force_algorithm="fft", disabled="numba", memory_limit="4GiB")
        >>> settings.forced, settings.disables("numba", "recurrence")
        ("force_algorithm='fft'", True)
    """

    force_backend: str | None = None
    force_algorithm: str | None = None
    disabled: frozenset[str] = frozenset()
    calibration: Calibration = "measured"
    sample: bool = True
    mode: Mode = "learn"
    explore_fraction: float = 0.02
    switch_margin: float = 0.1
    objective: Objective | Mapping[str, float] | Weights = "latency"
    deterministic: bool | None = None
    memory_limit: Limit | None = None
    gpu_memory_limit: Limit | None = None
    offload: bool | Sequence[str] = False
    wisdom: str | os.PathLike[str] = DEFAULT

    def __post_init__(self) -> None:
        if self.force_backend is not None:
            one_of("force_backend", self.force_backend, backends())
        if self.force_algorithm is not None:
            one_of("force_algorithm", self.force_algorithm, algorithms())
        object.__setattr__(self, "disabled", names("disable", self.disabled))
        one_of("calibration", self.calibration, CALIBRATIONS)
        if not isinstance(self.sample, bool):
            raise ValueError(f"sample={self.sample!r}: needs one of True, False.")
        object.__setattr__(self, "offload", _offload(self.offload))
        one_of("mode", self.mode, MODES)
        between("explore_fraction", self.explore_fraction, MOST_EXPLORED)
        between("switch_margin", self.switch_margin, 1)
        if self.deterministic is not None and not isinstance(self.deterministic, bool):
            raise ValueError(f"deterministic={self.deterministic!r}: needs one of True, False, None.")
        for name in ("memory_limit", "gpu_memory_limit"):
            if getattr(self, name) is not None:
                amount(name, getattr(self, name))
        object.__setattr__(self, "objective", _objective(self.objective))
        object.__setattr__(self, "wisdom", _wisdom(self.wisdom))

    def changed(self, changes: SettingsChanges) -> "Settings":
        """Return these settings with changes; see `BackendManager.configure`."""
        given: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in SettingsChanges.__annotations__:
                raise TypeError(f"BackendManager.configure() got an unexpected keyword argument {name!r}")
            field = "disabled" if name == "disable" else name
            given[field] = getattr(Settings, field) if value is None else value  # a field's default is its attribute
        return replace(self, **given)

    @property
    def is_forced(self) -> bool:
        """Whether a backend or an algorithm is forced."""
        return self.force_backend is not None or self.force_algorithm is not None

    @property
    def forced(self) -> str:
        """The forced backend and algorithm as text, such as "force_algorithm='fft'"; "" where none is forced."""
        forces = {"force_backend": self.force_backend, "force_algorithm": self.force_algorithm}
        return " and ".join(f"{name}={value!r}" for name, value in forces.items() if value is not None)

    def of(self, op: str) -> "Settings":
        """Return the settings for one operation: without a forced name that only kernels of other operations have."""
        settings = self
        if not self.is_forced:
            return self
        if self.force_backend is not None and is_elsewhere(op, backend=self.force_backend):
            settings = replace(settings, force_backend=None)
        if self.force_algorithm is not None and is_elsewhere(op, algorithm=self.force_algorithm):
            settings = replace(settings, force_algorithm=None)
        return settings

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that `offload` names, which may compute data of the host; empty where none is named."""
        return () if isinstance(self.offload, bool) else tuple(self.offload)

    @property
    def weights(self) -> dict[Objective, float]:
        """How much latency, memory and energy count; those that do not are left out."""
        if isinstance(self.objective, str):
            return {self.objective: 1.0}
        return dict(cast(Weights, self.objective))

    def disables(self, backend: str, algorithm: str) -> bool:
        return backend in self.disabled or f"{backend}/{algorithm}" in self.disabled

    def admits(self, backend: str, algorithm: str) -> bool:
        """Return whether kernels of this backend and algorithm may run under what is forced, if anything is."""
        return self.force_backend in (None, backend) and self.force_algorithm in (None, algorithm)

    def is_deterministic(self, framework: str) -> bool:
        """Return whether plans must not change: as it was set, else as `framework` says of itself.

        A framework without a probe is not deterministic.
        """
        if self.deterministic is not None:
            return self.deterministic
        found = probe_of(framework)
        return found is not None and found.deterministic()


def amount(name: str, value: object) -> int | float:
    """Return a limit as bytes (an int) or as a fraction in (0, 1] of what is free (a float).

    A number up to 1 is a fraction, a larger one bytes; text is such a number, alone or followed by a unit:
    B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), in any case.

    Raises:
        ValueError: `value` is none of these, or not positive.
        TypeError: `value` is neither a number nor text.

    Examples:
        >>> amount("memory_limit", "4GiB"), amount("memory_limit", "0.5")
        (4294967296, 0.5)
    """
    number, unit = _parsed(value) if isinstance(value, str) else (as_float(value), "")
    if number is None:
        raise TypeError(f"{name}={value!r}: needs {_AMOUNTS}")
    if not 0 < number < math.inf or (number > 1 and not unit and number != int(number)):
        raise ValueError(f"{name}={value!r}: needs {_AMOUNTS}")
    if number <= 1 and not unit:
        return number
    if isinstance(value, int):
        return value  # not by way of float, which has no odd numbers above 2**53
    return max(int(number * _BYTES[unit or "b"]), 1)


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless `value` is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r}: needs one of {', '.join(allowed)}.")


def between(name: str, value: object, most: float) -> None:
    """Raise unless `value` is a number in [0, most]."""
    number = as_float(value)
    if number is None:
        raise TypeError(f"{name}={value!r}: needs a number in [0, {most:g}].")
    if not 0 <= number <= most:
        raise ValueError(f"{name}={value!r}: needs a number in [0, {most:g}].")


def names(owner: str, listed: object) -> frozenset[str]:
    """Return the names to disable, of a comma list or any iterable: backends, or a backend, a slash and an algorithm.

    Raises:
        TypeError: `listed` is no text and no iterable of text.
        ValueError: A name is not known.
    """
    rule = f"a backend ({', '.join(backends())}), alone or followed by a slash "
    rule += f"and an algorithm ({', '.join(algorithms())})."
    parts = listed.split(",") if isinstance(listed, str) else listed
    try:
        given: list[Any] = list(parts)  # type: ignore[call-overload]
    except TypeError:
        given = [parts]
    if not all(isinstance(name, str) for name in given):
        raise TypeError(f"{owner}={listed!r}: needs a comma list or an iterable of names: each {rule}")
    found = frozenset(name.strip() for name in given if name.strip())
    for name in sorted(found):
        backend, slash, algorithm = name.partition("/")
        if backend not in backends() or (slash and algorithm not in algorithms()):
            raise ValueError(f"{owner}={name!r}: needs {rule}")
    return found


def _parsed(text: str) -> tuple[float, str]:
    """Return the number and the unit of a memory limit such as "4GiB", the unit in lower case, "" if there is none.

    Text that is not of this kind gives NaN, which every limit refuses.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[3].lower() not in {"", *_BYTES}:
        return math.nan, ""
    return float(found[1] + (found[2] or "")), found[3].lower()


def _objective(given: Any) -> Objective | Weights:
    """Return the checked objective: one name, or pairs of name and weight in the order of `OBJECTIVES`."""
    if isinstance(given, str):
        one_of("objective", given, OBJECTIVES)
        weights = {given: 1.0}
    else:
        weights = _weights(given)
    if weights.get("energy"):
        refusal = fingerprint.energy_refusal()
        if refusal is not None:
            raise ValueError(f"objective={given!r}: energy cannot be read here: {refusal}; use latency or memory.")
    counted = tuple((cast(Objective, name), float(weights[name])) for name in OBJECTIVES if weights.get(name))
    return counted[0][0] if len(counted) == 1 else counted


def _weights(given: Any) -> dict[str, float]:
    rule = f"needs one of {', '.join(OBJECTIVES)}, or weights of them such as {{'latency': 1, 'memory': 0.5}}"
    is_pairs = isinstance(given, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in given)
    if not isinstance(given, Mapping) and not is_pairs:
        raise TypeError(f"objective={given!r}: {rule}.")
    weights = dict(given)
    numbers = [as_float(weight) for weight in weights.values()]
    finite = all(weight is not None and 0 <= weight < math.inf for weight in numbers)
    if not set(weights) <= set(OBJECTIVES) or not finite or not any(numbers):
        raise ValueError(f"objective={given!r}: {rule}, finite, none negative and one positive.")
    return weights


def _wisdom(given: object) -> str:
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"wisdom={given!r}: needs a path, or one of {DEFAULT}, {OFF}.")
    path = os.fspath(given)
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ValueError(f"wisdom={given!r}: needs a path, or one of {DEFAULT}, {OFF}.")
    return path if path in (DEFAULT, OFF) else os.path.abspath(os.path.expanduser(path))


def _offload(given: Any) -> bool | tuple[str, ...]:
    """Return the checked setting: whether data of the host may go to other devices, or the devices allowed."""
    if isinstance(given, bool):
        return given
    rule = "needs True, False, or a list of devices other than the host, each once, such as ['cuda:0', 'cuda:1']."
    devices: tuple[Any, ...] = ()
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        with suppress(TypeError):  # an array of no axes says that it can be iterated
            devices = tuple(given)
    if not all(isinstance(device, str) and _DEVICE.fullmatch(device) and not is_host(device) for device in devices):
        raise ValueError(f"offload={given!r}: {rule}")
    if not devices or len(set(devices)) < len(devices):
        raise ValueError(f"offload={given!r}: {rule}")
    return devices


PREFIX = "HPFRACC_NN_"
OLD_PREFIX = "HPFRACC_"
OLD_BACKENDS = {"JAX": "xla", "TORCH": "torch", "NUMBA": "numba"}
FOREIGN = ("JAX_PLATFORM_NAME", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
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
    read = {name: reader(environ, PREFIX + variable) for name, (variable, reader) in VARIABLES.items()}
    return Settings(**{name: value for name, value in read.items() if value is not None})


def shown(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the environment variables that `hpfracc-nn info` shows, by name; None where one is unset.

    These are all that begin with HPFRACC_, and those of JAX and CUDA that decide which devices there are.
    """
    environ = os.environ if environ is None else environ
    ours = sorted(variable for variable in environ if variable.startswith(OLD_PREFIX))
    return {variable: environ.get(variable) for variable in (*ours, *FOREIGN)}


def _value_of(environ: Mapping[str, str], variable: str) -> str | None:
    return environ.get(variable, "").strip() or None


def _choice(environ: Mapping[str, str], variable: str, allowed: Sequence[str]) -> str | None:
    value = _value_of(environ, variable)
    if value is not None:
        one_of(variable, value, allowed)
    return value


def _switch(environ: Mapping[str, str], variable: str) -> bool | None:
    value = _choice({variable: environ.get(variable, "").lower()}, variable, tuple(_SWITCH))
    return None if value is None else _SWITCH[value]


def _offload_from(environ: Mapping[str, str], variable: str) -> bool | list[str] | None:
    value = _value_of(environ, variable)
    if value is None or value.lower() in _SWITCH or ":" not in value:
        return _switch(environ, variable)
    return [device.strip() for device in value.split(",")]


def _force(environ: Mapping[str, str], variable: str) -> str | None:
    force = _choice(environ, variable, backends())
    older = [OLD_PREFIX + "FORCE_" + name for name in OLD_BACKENDS]
    forced = [] if force else [name for name in older if _switch(environ, name)]
    if len(forced) > 1:
        both = " and ".join(forced)
        raise ValueError(f"{both}: needs at most one of them to be 1; unset the others, or set {variable}.")
    return OLD_BACKENDS[forced[0].removeprefix(OLD_PREFIX + "FORCE_")] if forced else force


def _disabled(environ: Mapping[str, str], variable: str) -> frozenset[str]:
    """Return the kernels and backends that environment variables disable, by a list or by a switch of their own.

    The list is in `variable`, with which the names of the switches begin. A switch under an older name counts only if
    no newer switch, and no forced backend, says otherwise.
    """
    listed = names(variable, environ.get(variable, ""))
    switches = dict(_disable_switches(environ, variable + "_"))
    for name, backend in OLD_BACKENDS.items():
        is_older = _switch(environ, f"{OLD_PREFIX}DISABLE_{name}")
        if is_older and backend != _value_of(environ, PREFIX + "FORCE_BACKEND"):
            switches.setdefault(backend, True)
    return listed | {backend for backend, is_disabled in switches.items() if is_disabled}


def _disable_switches(environ: Mapping[str, str], start: str) -> Iterator[tuple[str, bool]]:
    for variable in sorted(variable for variable in environ if variable.startswith(start)):
        backend = variable[len(start) :].lower()
        if backend not in backends():
            allowed = ", ".join(start + name.upper() for name in backends())
            raise ValueError(f"{variable}={environ[variable]!r}: needs one of the names {allowed}.")
        is_disabled = _switch(environ, variable)
        if is_disabled is not None:
            yield backend, is_disabled


def _mode(environ: Mapping[str, str], variable: str) -> str | None:
    mode = _choice(environ, variable, MODES)
    learns = _switch(environ, OLD_PREFIX + "ENABLE_LEARNING")
    if mode is not None or learns is None:
        return mode
    return "learn" if learns else "prior"


def _wisdom_from(environ: Mapping[str, str], variable: str) -> str | None:
    value = _value_of(environ, variable)
    word = "" if value is None else value.lower()
    if word in _SWITCH:
        return DEFAULT if _SWITCH[word] else OFF
    return word if word == DEFAULT else value


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    for variable in sorted(variable for variable in environ if variable.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX)
        if name not in KNOWN and not name.startswith("DISABLE_"):
            known = ", ".join(PREFIX + each for each in difflib.get_close_matches(name, KNOWN, n=1) or KNOWN)
            warnings.warn(f"{variable} is not known and has no effect; known is {known}.", stacklevel=4)


def _explore_fraction(environ: Mapping[str, str], variable: str) -> float | None:
    value = _value_of(environ, variable)
    if value is None:
        return None
    try:
        fraction = float(value)
    except ValueError:
        raise ValueError(f"{variable}={value!r}: needs a number in [0, {MOST_EXPLORED:g}].") from None
    between(variable, fraction, MOST_EXPLORED)
    return fraction


def _limit(environ: Mapping[str, str], variable: str) -> str | None:
    """Return a memory limit as text, None if unset; an older variable for it is checked too, and used if alone."""
    older = OLD_PREFIX + variable.removeprefix(PREFIX)
    variables = (variable, older) if variable.endswith("GPU_MEMORY_LIMIT") else (variable,)
    values = {each: value for each in variables if (value := _value_of(environ, each)) is not None}
    for each, value in values.items():
        amount(each, value)
    return next(iter(values.values()), None)


Reader = Callable[[Mapping[str, str], str], Any]  # of environment and variable's name; None: it is unset

VARIABLES: dict[str, tuple[str, Reader]] = {  # by setting: the name after the prefix, and what reads it
    "force_backend": ("FORCE_BACKEND", _force),
    "force_algorithm": ("FORCE_ALGORITHM", lambda environ, variable: _choice(environ, variable, algorithms())),
    "disabled": ("DISABLE", _disabled),
    "calibration": ("CALIBRATION", lambda environ, variable: _choice(environ, variable, CALIBRATIONS)),
    "mode": ("SELECTION", _mode),
    "explore_fraction": ("EXPLORE_FRACTION", _explore_fraction),
    "deterministic": ("DETERMINISTIC", _switch),
    "memory_limit": ("MEMORY_LIMIT", _limit),
    "gpu_memory_limit": ("GPU_MEMORY_LIMIT", _limit),
    "offload": ("OFFLOAD", _offload_from),
    "wisdom": ("WISDOM", _wisdom_from),
}
KNOWN = tuple(variable for variable, _ in VARIABLES.values())
