"""What workloads have in common: sizes in buckets, and the facts across which no time says anything."""

import json
import math
from dataclasses import dataclass

from hpfracc_nn.selection.workload import Workload

EXACT = 32  # below it every size is a bucket of its own

Fact = str | int | bool


@dataclass(frozen=True, slots=True)
class Key:
    """Workloads that share their times.

    Args:
        group: Facts that must be equal before one key's times say anything about another's.
        features: log2 of each size; the distance of two keys of one group is in octaves.
    """

    group: tuple[Fact, ...]
    features: tuple[float, ...]

    def distance(self, other: "Key") -> float:
        """Return how many octaves of size lie between two keys of one group."""
        return math.dist(self.features, other.features)

    def text(self) -> str:
        """Return what `parse` reads."""
        return json.dumps([self.group, self.features])

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Return the key that wrote `text`.

        Raises:
            ValueError: It is no key's text.
        """
        try:
            group, features = json.loads(text)
            key = cls(tuple(group), tuple(float(size) for size in features))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"Key.parse({text!r}): needs what Key.text() wrote.") from error
        facts = isinstance(group, list) and bool(group) and all(isinstance(fact, Fact) for fact in group)
        if not facts or not all(map(math.isfinite, key.features)):
            raise ValueError(
                f"Key.parse({text!r}): needs at least one fact, a text or a whole number, and finite sizes."
            )
        return key


def bucket(size: int) -> int:
    """Return the least size of the bucket that holds `size`: four buckets to the octave, none below 32.

    Two sizes of one bucket differ by less than a quarter.
    """
    if size < EXACT:
        return size
    shift = size.bit_length() - 3
    return size >> shift << shift


def key_of(workload: Workload) -> Key:
    """Return the key of `workload`: its rows, length and width in buckets, everything else exactly.

    The number of exponentials is left out: it follows from dtype and length, and the estimate counts it.
    """
    group = (
        workload.op,
        workload.framework,
        workload.device,
        workload.dtype,
        workload.layout,
        workload.shares_weights,
        workload.needs_gradient,
        workload.learns_weights,
        workload.threads,
    )
    sizes = (workload.rows, workload.n, workload.width)
    return Key(group, tuple(math.log2(max(1, bucket(size))) for size in sizes))


def known_key(text: str) -> Key:
    """Return the key of workloads that wrote `text`.

    Raises:
        ValueError: It is no key's text, or that of a key with other facts or sizes than `key_of` returns.
    """
    key = Key.parse(text)
    if _kinds(key) != _KINDS:
        raise ValueError(f"known_key({text!r}): needs the text of a key that key_of(workload) returned.")
    return key


def _kinds(key: Key) -> tuple[list[type], int]:
    return [type(fact) for fact in key.group], len(key.features)


_KINDS = _kinds(key_of(Workload("op", "framework")))
