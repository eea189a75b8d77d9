"""What the choice of kernels did for a model: numbers for loggers, and the lines below the table."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpfracc_nn.errors import printable
from hpfracc_nn.selection import BackendManager, Plan
from hpfracc_nn.selection.learning.wisdom_file import WisdomFile
from hpfracc_nn.selection.observe.counts import Counts, milliseconds
from hpfracc_nn.selection.workload import DIRECTIONS
from hpfracc_nn.training.ledger import Watched, shares

BASELINE = "fft"  # what people use without this package


@dataclass(frozen=True)
class Spent:
    """What managers have spent so far.

    Args:
        deciding: Seconds for deciding and learning.
        exploring: Seconds that trials took longer than the best kernel would have.
        total: Seconds of all calls, as far as is known.
        stand_ins: Calls at which a kernel ran in place of one that failed.
    """

    deciding: float = 0.0
    exploring: float = 0.0
    total: float = 0.0
    stand_ins: int = 0

    @classmethod
    def of(cls, managers: Iterable[BackendManager]) -> "Spent":
        """Return what these have spent, together."""
        found = [(each.overhead(), *each.exploration(), each.tally.stand_ins.total()) for each in managers]
        deciding, exploring, total, stand_ins = map(sum, zip(*found, strict=True)) if found else (0.0, 0.0, 0.0, 0)
        return cls(deciding, exploring, total, int(stand_ins))

    def since(self, before: "Spent") -> "Spent":
        """Return how much more this is."""
        return Spent(
            self.deciding - before.deciding,
            self.exploring - before.exploring,
            self.total - before.total,
            self.stand_ins - before.stand_ins,
        )


@dataclass(frozen=True, slots=True)
class Recent:
    """What a plan of a module did since the last time."""

    name: str
    plan: Plan
    counts: Counts


def recent(watched: Iterable[Watched]) -> list[Recent]:
    """Return what each plan did since it was seen."""
    return [Recent(each.name, each.plan, each.counts().minus(each.seen)) for each in watched]


def scalars(found: list[Recent], spent: Spent, batches: int, quarantined: int) -> dict[str, float]:
    """Return what happened in so many batches.

    Args:
        found: What each plan did.
        spent: By the managers meanwhile.
        batches: How many there were.
        quarantined: Workloads, sizes or places at which a kernel is left alone now.
    """
    calls = sum(each.counts.calls for each in found)
    by_backend = shares((each.plan.backend, each.counts.calls) for each in found)
    values = {f"share/{backend}": share for backend, share in by_backend.items()}
    values["select_per_step"] = calls / max(1, batches)
    values["plans"] = float(len(found))
    values["explore_fraction"] = spent.exploring / spent.total if spent.total > 0 else 0.0
    values["switches"] = float(sum(each.counts.switches for each in found))
    values["fallbacks"] = float(spent.stand_ins)
    values["quarantined"] = float(quarantined)
    values["regret_estimate"] = regret(found)
    values["overhead_us"] = 1e6 * spent.deciding / calls if calls else 0.0
    return values | times(found)


def times(found: Iterable[Recent]) -> dict[str, float]:
    """Return the measured milliseconds of each module's plan that was consulted most."""
    most: dict[str, Recent] = {}
    for each in found:
        if each.name not in most or each.counts.calls > most[each.name].counts.calls:
            most[each.name] = each
    measured = {
        f"op_ms/{name}.{direction}": milliseconds(each.plan.quantile(direction))
        for name, each in most.items()
        for direction in DIRECTIONS
    }
    return {name: value for name, value in measured.items() if value is not None}


def regret(found: Iterable[Recent]) -> float:
    """Return the part of the predicted time that would not have been spent if the best kernel had always run."""
    spent = least = 0.0
    for each in found:
        best = min((seconds for _, seconds in each.plan.alternatives), default=each.plan.seconds)
        spent += each.counts.forwards * each.plan.seconds
        least += each.counts.forwards * min(best, each.plan.seconds)
    return 1 - least / spent if spent else 0.0


def saved(watched: Iterable[Watched]) -> float | None:
    """Return the predicted seconds that the same calls would have taken longer by FFT; None where none could be."""
    found = None
    for each in watched:
        others = [(each.plan.kernel.name, each.plan.seconds), *each.plan.alternatives]
        by_fft = [seconds for name, seconds in others if name.split("/")[1] == BASELINE]
        if by_fft:
            found = (found or 0.0) + each.counts().forwards * (min(by_fft) - each.plan.seconds)
    return found


def plan_table(managers: Iterable[BackendManager]) -> dict[str, str]:
    """Return the kernel of each workload that is in use, as text: what processes compare."""
    return {
        repr(plan.workload): plan.kernel.name
        for manager in managers
        for site in manager.sites()
        for plan in site.in_use()
    }


def plan_hash(table: Mapping[str, str]) -> str:
    """Return 12 hexadecimal digits that differ where another kernel is chosen for a workload."""
    lines = "\n".join(f"{workload} {kernel}" for workload, kernel in sorted(table.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def footer(watched: list[Watched], managers: list[BackendManager]) -> str:
    """Return the line below the table: what was gained, what it cost, and what would bring the same plans again."""
    spent, calls = Spent.of(managers), sum(sum(each.totals().uses.values()) for each in managers)
    said, gained = [], saved(watched)
    if gained is not None:
        said.append(f"Saved against FFT everywhere: {gained:.3g} s (estimated).")
    if calls:
        said.append(f"Deciding and learning: {1e6 * spent.deciding / calls:.3g} us a call.")
    if managers:
        said.append(f"Plans {plan_hash(plan_table(managers))}.")
    for manager in managers:
        file = WisdomFile.at(str(manager.settings.wisdom)) if manager.settings.mode in ("learn", "frozen") else None
        said.append(f"Mode {manager.settings.mode}, wisdom {'none' if file is None else file.path}.")
    return printable(" ".join(said))
