"""What was learnt, as a value: times of kernels, rates of places, how two of them merge, and their JSON.

The word is FFTW's. Nothing here touches the disk; see `wisdom_file`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from hpfracc_nn.selection.learning.fingerprint import SCHEMA
from hpfracc_nn.selection.machine import Place
from hpfracc_nn.selection.workload import LATEST, Rates

Trust = Literal["own", "prior"]
TRUSTS: tuple[Trust, ...] = get_args(Trust)
MOST_SAMPLES = 64  # a new sample weighs at least 1/65: what was learnt long ago fades
MOST_TIMINGS = 4096  # half a megabyte
_SECONDS = ("forward", "backward", "forward_estimate", "backward_estimate")
_LISTED: dict[str, type] = {"caches": dict, "gpus": list, "packages": dict}  # of the facts of a machine
LONGEST = 1e9  # seconds that a kernel may take, 30 years
MOST = 1e30  # operations or bytes per second


class OtherSchemaError(ValueError):
    """The bytes are wisdom of another version of the format."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one kernel takes for one kind of workload.

    Args:
        key: The kind of workload, `key_of(workload).text()` of `selection.bucket`; other text is kept and compared, and
            says nothing to a manager.
        arm: Name of the kernel.
        forward: Seconds, a 20 % quantile; None where it was never timed.
        backward: Seconds of the backward pass, the same way.
        forward_estimate: What the kernel was expected to take, without measurement, where it was timed: a kind of
            workload has several sizes, and only the ratio holds for all of them. None: what is expected at the next
            call.
        backward_estimate: Estimate of the backward pass, the same way.
        basis: `Machine.basis` of the estimates: by another calibration they would be others, and what was measured here
            counts by its seconds alone. "" where nobody knows.
        samples: How many samples stand behind it; more than 64 count as 64.
        time: Unix time of the last sample.
        trust: "own" was measured on this machine, "prior" on another one.

    Raises:
        ValueError: A value is of another type or out of range.

    Examples:
        >>> early = Timing(
        ...     "total", "numpy/pairwise", forward=2e-6, backward=None, samples=10, time=1.8e9
        ... )
        >>> later = Timing(
        ...     "total", "numpy/pairwise", forward=4e-6, backward=None, samples=30, time=1.9e9
        ... )
        >>> both = early.merged(later)
        >>> # microseconds: a mean weighted by samples
        >>> both.samples, round(1e6 * both.forward, 6)
        (40, 3.5)
    """

    key: str
    arm: str
    forward: float | None
    backward: float | None
    samples: int
    time: float
    trust: Trust = "own"
    forward_estimate: float | None = None
    backward_estimate: float | None = None
    basis: str = ""

    def __post_init__(self) -> None:
        for name in ("key", "arm"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"Timing({name}={value!r}): needs a text that is not empty.")
        for name in _SECONDS:
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 <= value < LONGEST):
                raise ValueError(f"Timing({name}={value!r}): needs None or seconds, 0 <= {name} < {LONGEST:.0e}.")
        if self.forward is None and self.backward is None:
            raise ValueError("Timing(forward=None, backward=None): needs at least one of them.")
        if not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise ValueError(f"Timing(samples={self.samples!r}): needs a whole number, samples >= 1.")
        if not (_is_number(self.time) and 0 <= self.time < LATEST):
            raise ValueError(f"Timing(time={self.time!r}): needs seconds since 1970, 0 <= time < {LATEST:g}.")
        if not isinstance(self.basis, str):
            raise ValueError(f"Timing(basis={self.basis!r}): needs a text.")
        if not isinstance(self.trust, str) or self.trust not in TRUSTS:
            raise ValueError(f"Timing(trust={self.trust!r}): needs one of {', '.join(TRUSTS)}.")
        object.__setattr__(self, "samples", min(self.samples, MOST_SAMPLES))

    def merged(self, other: "Timing") -> "Timing":
        """Return one timing of both: means weighted by samples; trust "own" displaces "prior".

        Of estimates on two bases the later ones stay.
        """
        if self.trust != other.trust:
            return self if self.trust == "own" else other
        weights = self.samples, other.samples
        if self.basis != other.basis:
            earlier, later = sorted((self, other), key=lambda each: each.time)
            bare = replace(earlier, forward_estimate=None, backward_estimate=None, basis=later.basis)
            return bare.merged(later)
        return replace(
            self,
            forward=_mean((self.forward, other.forward), weights),
            backward=_mean((self.backward, other.backward), weights),
            forward_estimate=_mean((self.forward_estimate, other.forward_estimate), weights),
            backward_estimate=_mean((self.backward_estimate, other.backward_estimate), weights),
            samples=sum(weights),
            time=max(self.time, other.time),
        )


@dataclass(frozen=True)
class Wisdom:
    """What was learnt: times of kernels, and rates of places.

    Args:
        timings: Timings by key and arm; at most `MOST_TIMINGS`, the oldest and those of other machines go first.
        rates: What calibrations measured, by place.

    Examples:
        >>> timing = Timing(
        ...     "total", "numpy/pairwise", forward=2e-6, backward=None, samples=10, time=1.8e9
        ... )
        >>> learnt = Wisdom.of([timing]).merged(Wisdom.of([timing]))
        >>> learnt.timings["total", "numpy/pairwise"].samples
        20
        >>> {each.trust for each in learnt.as_prior().timings.values()}  # for another machine
        {'prior'}
    """

    timings: Mapping[tuple[str, str], Timing] = field(default_factory=dict)
    rates: Mapping[Place, Rates] = field(default_factory=dict)

    @classmethod
    def of(cls, timings: Iterable[Timing] = (), rates: Mapping[Place, Rates] | None = None) -> "Wisdom":
        """Return the wisdom of these timings and rates; two timings of one key and arm are merged."""
        found: dict[tuple[str, str], Timing] = {}
        for timing in timings:
            name = timing.key, timing.arm
            found[name] = found[name].merged(timing) if name in found else timing
        if len(found) > MOST_TIMINGS:
            ranked = sorted(found.values(), key=lambda timing: (timing.trust == "own", timing.time))
            found = {(timing.key, timing.arm): timing for timing in ranked[-MOST_TIMINGS:]}
        return cls(found, dict(rates or {}))

    def merged(self, newer: "Wisdom") -> "Wisdom":
        """Return the wisdom of both; of two rates of one place those of `newer` remain."""
        return Wisdom.of((*self.timings.values(), *newer.timings.values()), {**self.rates, **newer.rates})

    def as_prior(self) -> "Wisdom":
        """Return what another machine may make of it: times to start from, and no rates."""
        return Wisdom.of(replace(timing, trust="prior") for timing in self.timings.values())

    def __bool__(self) -> bool:
        return bool(self.timings or self.rates)


def encode(wisdom: Wisdom, facts: Mapping[str, Any]) -> bytes:
    """Return the JSON of `wisdom`, learnt on a machine of these `facts`, with its checksum."""
    plans: dict[str, dict[str, Any]] = {}
    for timing in wisdom.timings.values():
        plans.setdefault(timing.key, {})[timing.arm] = {
            **{name: getattr(timing, name) for name in _SECONDS},
            "n": timing.samples,
            "t": timing.time,
            "trust": timing.trust,
            "basis": timing.basis,
        }
    calibration = [
        {
            **place._asdict(),
            "flops": {unit: float(rate) for unit, rate in rates.flops.items()},
            "bandwidth": float(rates.bandwidth),
            "launch": float(rates.launch),
        }
        for place, rates in sorted(wisdom.rates.items())
    ]
    body = {"schema": SCHEMA, "fingerprint": dict(facts), "calibration": calibration, "plans": plans}
    return _canonical({**body, "sum": _sum(body)})


def decode(data: bytes) -> tuple[Wisdom, dict[str, Any]]:
    """Return what `encode` was given: the wisdom, and the facts of its machine.

    Raises:
        OtherSchemaError: Another version of the format.
        ValueError: Anything else than such bytes, whole and unchanged.
    """
    try:
        body = _body(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    facts = _field(body, "fingerprint", dict)
    for name, kind in _LISTED.items():
        _checked(facts.get(name, kind()), kind)
    timings = [
        _timing(key, arm, entry)
        for key, arms in _field(body, "plans", dict).items()
        for arm, entry in _checked(arms, dict).items()
    ]
    rates = dict(_place_and_rates(entry) for entry in _field(body, "calibration", list))
    return Wisdom.of(timings, rates), facts


def _body(data: bytes) -> dict[str, Any]:
    body = json.loads(data)
    if not isinstance(body, dict) or not isinstance(body.get("schema"), int):
        raise ValueError("it has no schema")
    if body["schema"] != SCHEMA:
        raise OtherSchemaError(f"its schema is {body['schema']}, this version reads {SCHEMA}")
    said = body.pop("sum", None)
    if said != _sum(body):
        raise ValueError("its checksum does not fit")
    return body


def _timing(key: str, arm: str, entry: Any) -> Timing:
    entry = _checked(entry, dict)
    times = {name: entry.get(name) for name in _SECONDS}
    facts: dict[str, Any] = {"samples": entry.get("n"), "time": entry.get("t"), "trust": entry.get("trust")}
    return Timing(key, arm, **times, **facts, basis=entry.get("basis", ""))  # which checks them


def _place_and_rates(entry: Any) -> tuple[Place, Rates]:
    entry = _checked(entry, dict)
    framework, device, dtype = (_field(entry, name, str) for name in ("framework", "device", "dtype"))
    flops = {unit: _number(rate) for unit, rate in _field(entry, "flops", dict).items()}
    rates = Rates(flops, _number(entry.get("bandwidth")), _number(entry.get("launch")))
    return Place(framework, device, dtype, _field(entry, "threads", int)), rates


def _field(entry: Mapping[str, Any], name: str, kind: type) -> Any:
    return _checked(entry.get(name), kind)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{str(value)[:40]!r} stands where {kind.__name__} should")
    return value


def _number(value: Any) -> float:
    if not (_is_number(value) and abs(value) < MOST):
        raise ValueError(f"{str(value)[:40]!r} stands where a number should")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _mean(seconds: tuple[float | None, float | None], weights: tuple[int, int]) -> float | None:
    known = [(value, weight) for value, weight in zip(seconds, weights, strict=True) if value is not None]
    if not known:
        return None
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)


def _sum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _canonical(body: Mapping[str, Any]) -> bytes:
    """Return JSON with sorted keys and no spaces, whose checksum survives that a file is indented by hand."""
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
