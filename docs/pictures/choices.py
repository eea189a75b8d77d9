"""Draw what a manager remembers: python docs/pictures/choices.py writes four pictures beside itself, in a minute.

A layer with a learned order is called forward and backward at random sizes: a while with torch's kernels alone, after
which the map of kernels is drawn, and then with Numba's too, which fails for a moment. Needs Matplotlib and Numba.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import torch

from hpfracc_nn import BackendManager, FractionalLayer
from hpfracc_nn.analytics import History, choice_map, predicted_against_measured, shares_over_time, timeline
from hpfracc_nn.selection import Settings, kernels

HERE = Path(__file__).parent
SIZES = [(4**i, 4**j) for i in range(6) for j in range(2, 7) if 4 ** (i + j) <= 2**17]
SECONDS = 25.0  # of each part
FAILURES = 3


def call_for(seconds: float, layer: FractionalLayer, choose: random.Random) -> None:
    """Call a layer forward and backward at random sizes."""
    generator, end = torch.Generator().manual_seed(0), time.monotonic() + seconds
    while time.monotonic() < end:
        x = torch.randn(*choose.choice(SIZES), generator=generator).requires_grad_()
        layer(x).sum().backward()


def let_fail(name: str, times: int) -> None:
    """Let a kernel raise so often."""
    (kernel,) = [each for each in kernels("toeplitz", "torch") if each.name == name]
    run, left = kernel.run, iter(range(times))

    def failing(*given: Any) -> Any:
        if next(left, None) is None:
            return run(*given)
        raise RuntimeError("made to fail")

    kernel.run = failing


def main() -> None:
    """Call, and draw."""
    torch.set_num_threads(1)
    choose = random.Random(0)
    manager = BackendManager(Settings(wisdom="off", disabled=frozenset({"numba", "xla"})))
    layer = FractionalLayer(0.5, learn_alpha=True, manager=manager)
    call_for(SECONDS, layer, choose)
    pictures = {"choice_map": choice_map(History.of(manager))}
    manager.configure(disable="xla")
    while not any(plan.backend == "numba" for site in manager.sites() for plan in site.in_use()):
        call_for(1.0, layer, choose)
    call_for(SECONDS / 4, layer, choose)
    let_fail("numba/recurrence", FAILURES)
    call_for(SECONDS / 4, layer, choose)
    history = History.of(manager)
    pictures |= {plot.__name__: plot(history) for plot in (predicted_against_measured, shares_over_time, timeline)}
    for name, figure in pictures.items():
        figure.savefig(HERE / f"{name}.png", dpi=90)


if __name__ == "__main__":
    main()
