"""One cell of a table: our calls and torch's FFT on the same data, interleaved in one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from baselines import autograd_fft, cached_ffts, column, conv1d
from calls import both_ways, definitions, kernel_of, learned, planner, product_alone, public
from results import microseconds
from timing import Call, interleaved
from torch import Tensor

from hpfracc_nn import GrunwaldLetnikov

MOST_CONV1D = 1 << 25  # multiplications, rows * n * n: above it one call takes longer than all others together
LONGEST_CONV1D = 4096

Record = dict[str, Any]


def forward_cell(x: Tensor, rounds: int, dim: int = -1, *, budget: float) -> list[Record]:
    """Return one record per definition: FFT with a cached spectrum, conv1d where affordable, product, public call."""
    n = x.shape[dim]
    weights = column(GrunwaldLetnikov(0.5), n)
    calls: dict[str, Call] = {**cached_ffts(weights, x, dim)}
    if x.ndim == 2 and n <= LONGEST_CONV1D and x.numel() * n <= MOST_CONV1D:
        calls["conv1d"] = conv1d(weights, x)
    managers = {name: planner() for name in definitions(0.5)}
    for name, definition in definitions(0.5).items():
        calls[f"product {name}"] = product_alone(x, definition, managers[name], dim)
        calls[f"call {name}"] = public(x, definition, managers[name], dim)
    times = interleaved(calls, rounds, budget=budget)
    fft = times.best("fft")
    return [
        {
            **_where(x),
            "definition": name,
            "gradient": "none",
            "fft_us": microseconds(fft),
            "conv1d_us": microseconds(times["conv1d"]) if "conv1d" in calls else None,
            "product_us": microseconds(times[f"product {name}"]),
            "call_us": microseconds(times[f"call {name}"]),
            "product_ratio": fft / times[f"product {name}"],
            "call_ratio": fft / times[f"call {name}"],
            "kernel": kernel_of(manager),
            "rounds": times.rounds,
        }
        for name, manager in managers.items()
    ]


def backward_cell(x: Tensor, rounds: int, dim: int = -1, *, gradient: str, budget: float) -> list[Record]:
    """Return one record per definition for forward and backward; `gradient` is "x" or "x, alpha".

    The FFT keeps its spectrum where alpha is fixed; where it is learned the weights are made in the graph, and time is
    the last axis.
    """
    g, x = torch.ones_like(x), x.detach().requires_grad_()
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    if gradient == "x":
        inputs, chosen = [x], definitions(0.5)
        ffts = {**cached_ffts(column(GrunwaldLetnikov(0.5), x.shape[dim]), x, dim)}
    else:
        inputs, chosen = [x, alpha], {name: learned(fixed, alpha) for name, fixed in definitions(0.5).items()}
        ffts = {"fft": lambda: autograd_fft(alpha, x)}
    managers = {name: planner() for name in chosen}
    calls: dict[str, Callable[[], Tensor]] = ffts | {
        name: public(x, definition, managers[name], dim) for name, definition in chosen.items()
    }
    times = interleaved({name: both_ways(call, inputs, g) for name, call in calls.items()}, rounds, budget=budget)
    fft = times.best("fft")
    return [
        {
            **_where(x),
            "definition": name,
            "gradient": gradient,
            "fft_us": microseconds(fft),
            "call_us": microseconds(times[name]),
            "call_ratio": fft / times[name],
            "kernel": kernel_of(manager),
            "rounds": times.rounds,
        }
        for name, manager in managers.items()
    ]


def shape_name(x: Tensor) -> str:
    """Return for example "256 x 1024"."""
    return " x ".join(map(str, x.shape))


def _where(x: Tensor) -> Record:
    return {"shape": shape_name(x), "dtype": str(x.dtype).removeprefix("torch.")}
