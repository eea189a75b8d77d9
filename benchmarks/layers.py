"""What fractional memory costs in a layer, beside the same layer without it.

    python benchmarks/layers.py [--cells NAME] [--group NAME ...] [--output DIR]

`recurrent`: forward and backward of `FractionalLSTM` and `FractionalGRU` with a learned order, beside plain loops over
torch's cells: the ordinary one, and one that keeps the last 100 cell states and adds them up by their weights, which is
what the formula says.

`bank`: a bank of k learned orders beside one fixed and one learned order of the same input, forward, and forward with
backward to the input. A learned order needs one product more in its backward pass, for its own gradient.

`attention`: causal self-attention, forward and backward, with each kernel and with the one that is chosen, beside
`nn.MultiheadAttention`, whose weights are softmax of products.

One thread; medians over rounds in which all calls of a group take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from extent import Cells, add_cells
from results import Table
from timing import Call, interleaved, machine, set_allocator, torch_threads
from torch import Tensor, nn

from hpfracc_nn import BackendManager, FractionalAttention, FractionalDifference, FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.torch.recurrence import lag_weights
from hpfracc_nn.selection import Settings

ALPHA, MEMORY = 0.5, 100
AT_MOST = 2.0  # times the time of a loop over nn.LSTMCell
ORDERS = (4, 8)
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 7}
FEATURES, HEADS = 64, 4
BANK_AT_MOST = 1.1  # times k times one learned order


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


def recurrent(cells: Cells) -> Table:
    """Time the recurrent layers."""
    shapes = [(4, 8, 64)] if cells.is_quick else [(32, 64, 512), (1, 64, 512), (32, 256, 128)]
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
        times = interleaved(calls, ROUNDS[cells])
        for name in calls:
            each = {"us": 1e6 * times[name] / n, "ratio": times[name] / times[base]}
            table.add(batch=batch, units=units, n=n, name=name, **each)
    worst = max(one["ratio"] for one in table.records if one["name"].startswith("FractionalLSTM"))
    table.note(f"FractionalLSTM: at most {worst:.2f} times the {base}; at most {AT_MOST} wanted.")
    return table


def bank_calls(batch: int, n: int, k: int) -> dict[str, Call]:
    """Return forward, and forward with backward, of one order and of a bank."""
    torch.manual_seed(0)
    x = torch.randn(batch, 1, n)
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    layers = {
        "one fixed order": FractionalDifference(1, init=0.4, learn_alpha=False, manager=manager),
        "one learned order": FractionalDifference(1, init=0.4, manager=manager),
        "bank": FractionalDifference(1, orders=k, manager=manager),
    }
    found: dict[str, Call] = {}
    for name, layer in layers.items():
        found[f"{name}, forward"] = lambda layer=layer: without_gradient(layer, x)
        found[f"{name}, both"] = lambda layer=layer: both(layer, x.requires_grad_())
    return found


def without_gradient(layer: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def both(layer: nn.Module, x: Tensor) -> None:
    layer.zero_grad(set_to_none=True)
    x.grad = None
    layer(x).sum().backward()


def bank(cells: Cells) -> Table:
    """Time banks of learned orders."""
    shapes = [(4, 64)] if cells.is_quick else [(256, 256), (256, 1024), (64, 4096)]
    table = Table(
        "layers_bank",
        f"CPU milliseconds, float32, one thread, {machine()}. Ratios: over k times one order, fixed or learned.",
        {
            "batch": ("batch", ""),
            "n": ("samples", ""),
            "k": ("k", ""),
            "what": ("pass", ""),
            "ms": ("bank, ms", ".2f"),
            "one": ("one fixed, ms", ".2f"),
            "fixed": ("over k fixed", ".2f"),
            "learned": ("over k learned", ".2f"),
        },
    )
    table.begin("all")
    for batch, n in shapes:
        for k in ORDERS:
            times = interleaved(
                bank_calls(batch, n, k), 3 if cells.is_quick else 15, seconds=0.1, clock=time.process_time
            )
            for what in ("forward", "both"):
                mine, one, learned = (
                    times[f"{name}, {what}"] for name in ("bank", "one fixed order", "one learned order")
                )
                ratios = {"fixed": mine / (k * one), "learned": mine / (k * learned)}
                table.add(batch=batch, n=n, k=k, what=what, ms=1e3 * mine, one=1e3 * one, **ratios)
    fixed, learned = (max(record[each] for record in table.records) for each in ("fixed", "learned"))
    table.note(
        f"A bank of k learned orders: at most {fixed:.2f} k times one fixed order and {learned:.2f} k times one "
        f"learned order; {BANK_AT_MOST} k of the latter wanted."
    )
    return table


def attention_calls(batch: int, n: int) -> tuple[dict[str, Call], Callable[[], str]]:
    """Return forward and backward of each kernel and of torch's layer, and what names the kernel that was chosen."""
    torch.manual_seed(0)
    x = torch.randn(batch, n, FEATURES).requires_grad_()
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    theirs = nn.MultiheadAttention(FEATURES, HEADS, batch_first=True)
    managers = {
        name: BackendManager(Settings(mode="prior", calibration="shipped", force_algorithm=name))
        for name in ("dense", "blocks")
    }
    managers["chosen"] = BackendManager(Settings(mode="prior", calibration="shipped"))
    layers = {
        name: FractionalAttention(FEATURES, HEADS, batch_first=True, learn_alpha=True, manager=manager)
        for name, manager in managers.items()
    }
    found: dict[str, Call] = {"torch": lambda: theirs(x, x, x, need_weights=False, attn_mask=later)[0].sum().backward()}
    for name, layer in layers.items():
        found[name] = lambda layer=layer: layer(x, x, x, need_weights=False, is_causal=True)[0].sum().backward()
    return found, lambda: layers["chosen"].site.plans()[0].kernel.name


def attention(cells: Cells) -> Table:
    """Time the kernels of attention."""
    shapes = [(2, 16)] if cells.is_quick else [(16, 32), (16, 128), (4, 512), (1, 2048)]
    table = Table(
        "layers_attention",
        f"CPU milliseconds, {FEATURES} features, {HEADS} heads, float32, one thread, {machine()}.",
        {
            "batch": ("batch", ""),
            "n": ("samples", ""),
            "torch": ("nn.MultiheadAttention", ".2f"),
            "dense": ("dense", ".2f"),
            "blocks": ("blocks", ".2f"),
            "chosen": ("chosen", ""),
            "ratio": ("chosen over torch", ".2f"),
        },
    )
    table.begin("all")
    for batch, n in shapes:
        calls, chosen = attention_calls(batch, n)
        times = interleaved(calls, ROUNDS[cells], seconds=0.1, budget=40, clock=time.process_time)
        each = {name: 1e3 * times[name] for name in ("torch", "dense", "blocks")}
        table.add(batch=batch, n=n, **each, chosen=chosen(), ratio=times["chosen"] / times["torch"])
    return table


GROUPS: dict[str, Callable[[Cells], Table]] = {"recurrent": recurrent, "bank": bank, "attention": attention}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cells(parser)
    parser.add_argument("--group", nargs="*", choices=[*GROUPS], default=[*GROUPS], help="which; all by default")
    parser.add_argument("--output", type=Path, help="also write the tables into this folder")
    arguments = parser.parse_args()
    set_allocator("warm")
    with torch_threads(1):
        for name in arguments.group:
            table = GROUPS[name](arguments.cells)
            if arguments.output:
                table.write(arguments.output)


if __name__ == "__main__":
    main()
