"""Run a fractional LSTM on samples as they arrive: the results of the whole series, and a state that does not grow.

First, two layers with random weights read a noisy series one sample at a time; what comes out is compared with a call
on the whole series. Then an impulse is put into a cell whose gates stay open, and its trace is compared with the closed
form: the cell is then a fractional integral, and what it holds fades as t**(alpha - 1) / Gamma(alpha), by a power law.
An ordinary LSTM holds the impulse for ever, or lets it fade exponentially.

Run:  python examples/streaming_memory.py [--quick] [--output DIR]
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from hpfracc_nn import FractionalLSTM

ALPHAS = (0.3, 0.6, 0.9)
FORGETS = 0.98  # what the forget gate of the ordinary cell keeps of a step
SMALLEST = 1e-4  # of the plot


def streamed(layer, x):
    """The outputs for one sample after another, and the state's bytes after each."""
    state, outputs, sizes = layer.initial_state(x.shape[1:]), [], []
    for sample in x:  # in practice: from a sensor, a socket, a queue
        output, state = layer.step(sample, state)
        outputs.append(output)
        sizes.append(state.nbytes)
    return torch.stack(outputs), sizes


def with_open_gates(alpha, keep=1.0):
    """One cell that takes in tanh of its input whole and keeps a part of its memory at every step."""
    layer = FractionalLSTM(1, 1, alpha=alpha, dtype=torch.float64)
    for parameter in layer.parameters():
        parameter.zero_()
    layer.weight_ih_l0[2] = 1.0  # the candidate is tanh of the input
    layer.bias_ih_l0[0] = 40.0  # the input gate is 1 to rounding
    layer.bias_ih_l0[1] = 40.0 if keep == 1 else math.log(keep / (1 - keep))
    layer.bias_ih_l0[3] = 40.0  # so is the output gate: tanh of the cell is seen
    return layer


def trace(layer, n, size=1e-3):
    """What is left of an impulse in the cell, as a part of it, sample by sample."""
    x = torch.zeros(n, 1, dtype=torch.float64)
    x[0] = size
    return torch.atanh(streamed(layer, x)[0][:, 0]).numpy() / math.tanh(size)


def power_law(alpha, n):
    """The weights of the fractional integral: Gamma(k + alpha) / (Gamma(alpha) k!), about k**(alpha - 1)."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((k - 1 + alpha) / k)])


def picture(traces, sizes, cells, path):
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, found), colour in zip(traces.items(), ("C0", "C1", "C2", "0.5"), strict=True):
        left.loglog(np.arange(1, found.size + 1), found, color=colour, label=name)
    for alpha in ALPHAS:
        left.loglog(np.arange(1, found.size + 1), power_law(alpha, found.size), "k:", linewidth=1)
    left.set(title="An impulse in the cell", xlabel="samples since", ylabel="part that is left", ylim=(SMALLEST, 2))
    left.legend(fontsize=8)
    right.loglog(np.arange(1, len(sizes) + 1), sizes, label="state of the layer")
    right.loglog(np.arange(1, len(sizes) + 1), cells * np.arange(1, len(sizes) + 1), "--", label="all cells so far")
    right.set(title="Memory", xlabel="samples", ylabel="bytes")
    right.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    n = 400 if arguments.quick else 10_000
    torch.manual_seed(0)
    layer = FractionalLSTM(3, 16, num_layers=2, alpha=0.6, dtype=torch.float64)
    x = torch.randn(n, 8, 3, dtype=torch.float64)
    found, sizes = streamed(layer, x)
    off = (found - layer(x)[0]).abs().max().item()
    print(f"{n} samples one at a time: at most {off:.1e} from the call on the whole series")
    print(f"the state takes {sizes[0]} bytes after the first sample, {sizes[-1]} after the last")
    assert off < 1e-10
    assert sizes[0] == sizes[-1]

    traces = {f"alpha = {alpha}": trace(with_open_gates(alpha), n) for alpha in ALPHAS}
    traces[f"LSTM, forget gate {FORGETS}"] = trace(with_open_gates(1.0, keep=FORGETS), n)
    print(f"what is left of an impulse after {n} samples")
    for alpha, found in zip(ALPHAS, traces.values(), strict=False):
        exact = power_law(alpha, n)
        error = np.abs(found / exact - 1).max()
        slope = math.log(found[-1] / found[n // 2 - 1]) / math.log(2)
        print(f"  alpha={alpha}: {found[-1]:.5f}, falls as t**{slope:.4f}; closed form to {error:.0e}")
        assert error < 1e-10
        assert abs(slope - (alpha - 1)) < 5e-3
    print(f"  an ordinary cell that keeps {FORGETS} a step: {FORGETS ** (n - 1):.0e}")
    path = arguments.output / "streaming_memory.png"
    picture(traces, sizes, 2 * 8 * 16 * x.element_size(), path)  # layers, series, units
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
