"""What the way to a kernel costs, for a small input (16 x 64, float32): checks, manager, autograd.

    python benchmarks/dispatch.py [--quick] [--output DIR]

The bare kernel is the planned kernel's own run on weights in its form, differences included, its result allocated.
Targets: the layer's forward without gradient takes at most 2.5 times the bare kernel; an input that requires a gradient
adds at most what a minimal autograd.Function around the bare kernel adds to it; the look at the last results, which
finds samples that are not finite, takes at most 3 us or 2 % of the call. (An identity adds less, and is printed
too: it need not detach its input, which only so can be read.)
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from calls import both_ways, calibrate, planned_product, planner, public, signals
from results import Table, microseconds
from timing import Call, Times, interleaved, machine, set_allocator, torch_threads
from torch import Tensor

from hpfracc_nn import Caputo, FractionalDifference, FractionalLayer
from hpfracc_nn.fractional.torch import linear_map

ROWS, N = 16, 64
DEFINITION = Caputo(0.5)
MOST = 2.5  # layer / bare kernel
MOST_LOOKING = 3  # us


class Identity(torch.autograd.Function):
    """The least that a classic autograd function can do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Around(torch.autograd.Function):
    """The least that one does which runs a kernel on the memory of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Call) -> Any:
        x.detach()
        return kernel()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def bare_kernel(x: Tensor) -> Call:
    """The planned kernel's own run on x, its result allocated."""
    product, data = planned_product(x, DEFINITION, planner())
    run, parts = product.plan.kernel.run, product.product

    def call() -> Tensor:
        y = torch.empty_like(data)
        run(parts.operator, parts.boundary, parts.canonical, data, y)
        return y

    return call


def site_pick(x: Tensor) -> Call:
    """The layer's question to its site, the key made before."""
    manager = planner()
    public(x, DEFINITION, manager)()
    (site,) = manager.sites()
    (plan,) = site.plans()
    key = (x.shape, x.dtype, x.device, False, False, plan.workload.exponentials, plan.workload.threads)
    return partial(site.pick, key, lambda: plan.workload)


def calls() -> dict[str, Call]:
    """Return everything that is timed, by name."""
    x, x_grad = signals(ROWS, N), signals(ROWS, N).requires_grad_()
    wide, g, bare = x[None], torch.ones(ROWS, N), bare_kernel(x)
    layer = FractionalLayer(DEFINITION.alpha, "caputo", manager=planner())
    fixed = FractionalDifference(ROWS, init=0.5, learn_alpha=False, manager=planner())
    learned = FractionalDifference(ROWS, init=0.5, manager=planner())
    return {
        "x.shape": lambda: x.shape,
        "Site.pick": site_pick(x),
        "bare kernel": bare,
        "derivative()": public(x, DEFINITION, planner()),
        "derivative(), results not looked at": unseen(public(x, DEFINITION, planner())),
        "layer": partial(layer, x),
        "layer, no_grad, x requires grad": without_grad(partial(layer, x_grad)),
        "layer, x requires grad": partial(layer, x_grad),
        "layer, forward and backward": both_ways(partial(layer, x_grad), [x_grad], g),
        "minimal Function around the bare kernel": partial(Around.apply, x_grad, bare),
        "identity, its forward alone": partial(Identity.forward, None, x),
        "identity Function": partial(Identity.apply, x_grad),
        "identity Function, forward and backward": both_ways(partial(Identity.apply, x_grad), [x_grad], g),
        "FractionalDifference, fixed": without_grad(partial(fixed, wide)),
        "FractionalDifference, learned": without_grad(partial(learned, wide)),
    }


def without_grad(call: Call) -> Call:
    """The call inside torch.no_grad(), whose own cost is included."""

    def inside() -> object:
        with torch.no_grad():
            return call()

    return inside


def unseen(call: Call) -> Call:
    """The call without the look at the last results that finds samples which are not finite."""

    def inside() -> object:
        look, linear_map.is_clear = linear_map.is_clear, _never_looked
        try:
            return call()
        finally:
            linear_map.is_clear = look

    return inside


def _never_looked(y: Tensor, shape: tuple[int, int, int, int], *, at_end: bool) -> bool:
    return True


def verdicts(times: Times) -> list[str]:
    """Return the derived figures, with their targets where there are any."""
    bare, layer = times["bare kernel"], times["layer"]
    added = times["layer, x requires grad"] - layer
    allowed = times["minimal Function around the bare kernel"] - bare
    least = times["identity Function"] - times["identity, its forward alone"]
    look = times["derivative()"] - times["derivative(), results not looked at"]
    picks = times["Site.pick"] / times["x.shape"]
    both = times["layer, forward and backward"] - times["identity Function, forward and backward"]
    return [
        f"layer / bare kernel: {layer / bare:.2f}, at most {MOST}: {_verdict(layer <= MOST * bare)}.",
        f"requires_grad adds {microseconds(added):.1f} us, at most the {microseconds(allowed):.1f} us of a minimal "
        f"Function around the bare kernel: {_verdict(added <= allowed)}. Identity: {microseconds(least):.1f} us.",
        f"The look at the last results takes {microseconds(look):.1f} us, at most {MOST_LOOKING} or 2 %: "
        f"{_verdict(look <= max(1e-6 * MOST_LOOKING, 0.02 * times['derivative()']))}.",
        f"Site.pick / x.shape: {picks:.1f}.",
        f"layer forward and backward, less an identity Function's: {microseconds(both):.1f} us.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    calibrate()
    set_allocator("warm")
    rounds = 7 if arguments.quick else 41
    with torch_threads(1):
        table = Table(
            "dispatch",
            f"Dispatch at {ROWS} x {N}, float32, one thread, {machine()}. Medians of {rounds} interleaved rounds.",
            {"call": ("call", ""), "us": ("us", ".2f")},
        )
        table.begin("warm allocator")
        times = interleaved(calls(), rounds, seconds=0.2)
        for name, seconds in times.medians.items():
            table.add(call=name, us=microseconds(seconds))
        for text in verdicts(times):
            table.note(text)
    if arguments.output:
        table.write(arguments.output)


def _verdict(reached: bool) -> str:
    return "pass" if reached else "FAIL"


if __name__ == "__main__":
    main()
