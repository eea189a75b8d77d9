"""What asking the manager costs while it learns, in pieces.

    python benchmarks/selection_hot_path.py [--quick] [--output benchmarks/results]

`Site.pick` is the question at every call, between decisions, with everything in its key that the plan depends on:
definition, step, axis, shape, dtype, device, whether a gradient is wanted, threads. `the key` is what it takes to make
that. A first decision is that for a size never seen before; a later one, and what a timed call adds, fall on one call
in 256 in the long run.

Targets: `Site.pick` takes at most 2.2 times a look-up of the same key in a dictionary, and under 1 us, a first decision
at most 200 us, and the manager at most 3 % of a forward pass of 16 x 64: that of a layer which learns, against one
whose site answers with a constant. Two layers alike differ by a few percent, by where their objects lie in memory: the
figure is the median of five pairs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from calls import both_ways, calibrate, signals
from results import Table, microseconds
from timing import Call, interleaved, machine, set_allocator, torch_threads
from torch import Tensor

from hpfracc_nn import BackendManager, Caputo, FractionalLayer
from hpfracc_nn.selection import Plan, Settings, Site, Stopwatch, Workload
from hpfracc_nn.selection.learning.model import LONGEST_PERIOD
from hpfracc_nn.selection.plan import NEVER

ROWS, N = 16, 64
DEFINITION = Caputo(0.5)
OF_LOOKUP, PICK, FIRST, OVERHEAD = 2.2, 1e-6, 200e-6, 0.03
LEARNS, ASKS_NOBODY = "layer that learns", "layer that asks nobody"
PAIRS = 5
WARM = 20_000  # calls after which the period is the longest, and decisions pay for themselves


class ConstantSite(Site):
    """Answers with the plan that it was given, whatever is asked."""

    def __init__(self, site: Site, plan: Plan):
        super().__init__(site.manager, site.recorder, site.op, site.framework, "")
        self.plan = plan

    def pick(self, key: object, describe: object) -> Plan:
        return self.plan


def learnt(x: Tensor) -> tuple[FractionalLayer, Site, Plan]:
    """Return a layer that has learnt of x's size all that it will, its site and its plan; compiled code is loaded."""
    numba = BackendManager(Settings(force_backend="numba", mode="prior", wisdom="off"))
    x_grad = x.clone().requires_grad_()
    both_ways(lambda: FractionalLayer(DEFINITION.alpha, manager=numba)(x_grad), [x_grad], x)()
    manager = BackendManager(Settings(mode="learn", wisdom="off"))
    layer = FractionalLayer(DEFINITION.alpha, "caputo", manager=manager)
    for _ in range(WARM):
        layer(x)
    (site,) = [site for site in manager.sites() if site.plans()]
    return layer, site, site.plans()[0]


def constant(x: Tensor, plan: Plan) -> FractionalLayer:
    """Return a layer that always runs the kernel of `plan`, untimed, and asks nobody."""
    force = {"force_backend": plan.backend, "force_algorithm": plan.algorithm}
    manager = BackendManager(Settings(mode="prior", sample=False, wisdom="off", **force))
    layer = FractionalLayer(DEFINITION.alpha, "caputo", manager=manager)
    layer(x)
    (site,) = [site for site in manager.sites() if site.plans()]
    layer._site = ConstantSite(site, site.plans()[0])
    return layer


def key_of(x: Tensor) -> tuple:
    """What `eager._at_once` asks with."""
    needs = torch.is_grad_enabled() and x.requires_grad
    return DEFINITION, 1.0, -1, x.shape, x.dtype, x.is_cpu or x.device, needs, torch.get_num_threads()


def median(call: Callable[[int], object], count: int) -> float:
    """Return the median seconds of `call` with one number after another."""
    times = []
    gc.collect()
    for number in range(count):
        start = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rare(site: Site, plan: Plan, count: int) -> dict[str, float]:
    """Return the seconds of what does not happen at every call."""
    manager, workload = site.manager, plan.workload

    def first(number: int) -> Plan:
        new = workload.changed(rows=1000 + number)
        return site.pick(("first", number), lambda: new)

    def first_with_gradient(number: int) -> Plan:
        new: Workload = workload.changed(rows=1000 + number, needs_gradient=True)
        return site.pick(("both", number), lambda: new)

    def later(number: int) -> Plan:
        plan.usage.reconsider()
        return site.pick(key, lambda: workload)

    def timed(number: int) -> None:
        watch = Stopwatch(1)
        seconds, _ = watch.stop()
        manager.record(plan, seconds_of_plan, "forward", keep=seconds >= 0)

    (key,) = [key for key, each in site._plans.items() if each.usage is plan.usage]
    seconds_of_plan = plan.quantile() or plan.seconds
    return {
        "first decision": median(first, count),
        "first decision, with gradient": median(first_with_gradient, count),
        "later decision": median(later, count),
        "timing a call and learning from it": median(timed, count),
    }


def calls(x: Tensor, layers: list[FractionalLayer], site: Site, plan: Plan) -> dict[str, Call]:
    key, workload = key_of(x), plan.workload
    other = site.manager.site(site.op, site.framework)
    for _ in range(10):
        other.pick(key, lambda: workload)
    other.plans()[0].usage.left = NEVER  # the next decision

    def describe() -> Workload:
        return workload

    found: dict[str, Call] = {
        "x.shape": lambda: x.shape,
        "the key": lambda: key_of(x),
        "a look-up": partial({key: plan}.get, key),
        "Site.pick": lambda: other.pick(key, describe),
    }
    for i, layer in enumerate(layers):
        found[f"{LEARNS} {i}"] = partial(layer, x)
        found[f"{ASKS_NOBODY} {i}"] = partial(constant(x, plan), x)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    calibrate()
    set_allocator("warm")
    rounds = 15 if arguments.quick else 101
    x = signals(ROWS, N)
    with torch_threads(1):
        table = Table(
            "selection-hot-path",
            f"Asking a manager that learns, {ROWS} x {N}, float32, one thread, {machine()}. Medians of {rounds} "
            "interleaved rounds, or of as many calls.",
            {"call": ("call", ""), "us": ("us", ".2f")},
        )
        table.begin("warm allocator")
        layers = [learnt(x) for _ in range(PAIRS)]
        _, site, plan = layers[0]
        times = dict(interleaved(calls(x, [layer for layer, _, _ in layers], site, plan), rounds, seconds=0.05).medians)
        pairs = [(times.pop(f"{LEARNS} {i}"), times.pop(f"{ASKS_NOBODY} {i}")) for i in range(PAIRS)]
        added = [whole / bare - 1 for whole, bare in pairs]
        for name, each in zip((LEARNS, ASKS_NOBODY), zip(*pairs, strict=True), strict=True):
            times[name] = statistics.median(each)
        times |= rare(site, plan, 10 * rounds)
        for name, seconds in times.items():
            more = {"added": statistics.median(added)} if name == LEARNS else {}
            table.add(call=name, us=microseconds(seconds), **more)
        for text in verdicts(times, added):
            table.note(text)
    if arguments.output:
        table.write(arguments.output)


def verdicts(times: dict[str, float], added: list[float]) -> list[str]:
    """Return the targets, and whether they are reached."""
    pick, lookup, first = times["Site.pick"], times["a look-up"], times["first decision, with gradient"]
    rarely = (times["later decision"] + times["timing a call and learning from it"]) / LONGEST_PERIOD
    typical, least, most = statistics.median(added), min(added), max(added)
    return [
        f"Site.pick / a look-up: {pick / lookup:.2f}, at most {OF_LOOKUP:.1f}; {microseconds(pick):.2f} us, under 1: "
        f"{_verdict(pick <= OF_LOOKUP * lookup and pick < PICK)}.",
        f"first decision: {microseconds(first):.0f} us, at most 200: {_verdict(first <= FIRST)}.",
        f"the manager adds {100 * typical:.1f} % [{100 * least:.1f}, {100 * most:.1f}] to a forward pass, at most 3: "
        f"{_verdict(typical <= OVERHEAD)}. Of it "
        f"{microseconds(rarely):.2f} us are decisions and timings, spread over {LONGEST_PERIOD} calls.",
    ]


def _verdict(reached: bool) -> str:
    return "pass" if reached else "FAIL"


if __name__ == "__main__":
    main()
