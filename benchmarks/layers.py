"""What fractional memory costs in a layer, beside the same layer without it.

    python benchmarks/layers.py [--quick] [--group NAME ...] [--output DIR]

`recurrent`: forward and backward of `FractionalLSTM` and `FractionalGRU` with a learned order, beside plain loops over
torch's cells: the ordinary one, and one that keeps the last 100 cell states and adds them up by their weights, which is
what the formula says.

One thread; medians over rounds in which all calls of a group take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from results import Table
from timing import Call, interleaved, machine, set_allocator, torch_threads
from torch import Tensor, nn

from hpfracc_nn import BackendManager, FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.torch.recurrent_memory import lag_weights
from hpfracc_nn.selection import Settings

ALPHA, MEMORY = 0.5, 100
AT_MOST = 2.0  # times the time of a loop over nn.LSTMCell


def cell_loop(cell: nn.LSTMCell, x: Tensor) -> Tensor:
    """Return the outputs of an ordinary cell, step by step."""
    h = c = x.new_zeros(x.shape[1], cell.hidden_size)
    outs = []
    for each in x:
        h, c = cell(each, (h, c))
        outs.append(h)
    return torch.stack(outs)


def gru_loop(cell: nn.GRUCell, x: Tensor) -> Tensor:
    """Return the outputs of an ordinary cell, step by step."""
    h = x.new_zeros(x.shape[1], cell.hidden_size)
    outs = []
    for each in x:
        h = cell(each, h)
        outs.append(h)
    return torch.stack(outs)


def window_loop(cell: nn.LSTMCell, x: Tensor, memory: int = MEMORY) -> Tensor:
    """Return the outputs of a cell whose forget gate looks at the last states, each with its weight."""
    weights = lag_weights(torch.tensor(ALPHA, dtype=torch.float64), memory + 1)[1:].to(x.dtype)
    h = x.new_zeros(x.shape[1], cell.hidden_size)
    recent, outs = [h], []
    for each in x:
        gates = nn.functional.linear(each, cell.weight_ih, cell.bias_ih)
        i, f, g, o = (gates + nn.functional.linear(h, cell.weight_hh, cell.bias_hh)).chunk(4, -1)
        m = torch.tensordot(weights[: len(recent)], torch.stack(recent[::-1]), 1)
        c = f.sigmoid() * m + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        recent = [*recent, c][-memory:]
        outs.append(h)
    return torch.stack(outs)


def trained(layer: nn.Module, forward: Callable[[], Tensor]) -> Call:
    """Return a call of forward and backward."""

    def call() -> None:
        layer.zero_grad(set_to_none=True)
        forward().square().mean().backward()

    return call


def recurrent_calls(batch: int, units: int, n: int) -> dict[str, Call]:
    """Return forward and backward of each kind of layer and loop."""
    torch.manual_seed(0)
    x = torch.randn(n, batch, units)
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    learned = {"alpha": ALPHA, "learn_alpha": True, "manager": manager}
    lstm_cell, gru_cell, lstm = nn.LSTMCell(units, units), nn.GRUCell(units, units), nn.LSTM(units, units)
    found = {
        "loop over nn.LSTMCell": trained(lstm_cell, lambda: cell_loop(lstm_cell, x)),
        f"loop over the last {MEMORY} states": trained(lstm_cell, lambda: window_loop(lstm_cell, x)),
        "nn.LSTM": trained(lstm, lambda: lstm(x)[0]),
        "loop over nn.GRUCell": trained(gru_cell, lambda: gru_loop(gru_cell, x)),
    }
    layers: dict[str, nn.Module] = {
        "FractionalLSTM": FractionalLSTM(units, units, **learned),
        f"FractionalLSTM, memory={MEMORY}": FractionalLSTM(units, units, **learned, memory=MEMORY),
        "FractionalLSTM, an order per unit": FractionalLSTM(units, units, **{**learned, "alpha": [ALPHA] * units}),
        "FractionalGRU": FractionalGRU(units, units, **learned),
    }
    for name, layer in layers.items():
        found[name] = trained(layer, lambda layer=layer: layer(x)[0])
    return found


def recurrent(quick: bool) -> Table:
    """Time the recurrent layers."""
    shapes = [(4, 8, 64)] if quick else [(32, 64, 512), (1, 64, 512), (32, 256, 128)]
    base = "loop over nn.LSTMCell"
    table = Table(
        "layers_recurrent",
        f"Microseconds per step of forward and backward, float32, one thread, {machine()}. Ratio: over the {base}.",
        {
            "batch": ("batch", ""),
            "units": ("units", ""),
            "n": ("steps", ""),
            "name": ("layer", ""),
            "us": ("us per step", ".0f"),
            "ratio": ("ratio", ".2f"),
        },
    )
    table.begin("all")
    for batch, units, n in shapes:
        calls = recurrent_calls(batch, units, n)
        times = interleaved(calls, 3 if quick else 7)
        for name in calls:
            each = {"us": 1e6 * times[name] / n, "ratio": times[name] / times[base]}
            table.add(batch=batch, units=units, n=n, name=name, **each)
    worst = max(one["ratio"] for one in table.records if one["name"].startswith("FractionalLSTM"))
    table.note(f"FractionalLSTM: at most {worst:.2f} times the {base}; at most {AT_MOST} wanted.")
    return table


GROUPS: dict[str, Callable[[bool], Table]] = {"recurrent": recurrent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes and few rounds")
    parser.add_argument("--group", nargs="*", choices=[*GROUPS], default=[*GROUPS], help="which; all by default")
    parser.add_argument("--output", type=Path, help="also write the tables into this folder")
    arguments = parser.parse_args()
    set_allocator("warm")
    with torch_threads(1):
        for name in arguments.group:
            table = GROUPS[name](arguments.quick)
            if arguments.output:
                table.write(arguments.output)


if __name__ == "__main__":
    main()
