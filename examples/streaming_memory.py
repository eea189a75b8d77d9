"""Run a fractional LSTM on samples as they arrive: the results of the whole series, and a state that does not grow.

Two layers with random weights read a series one sample at a time, beside a call on the whole of it. Then an impulse is
put into a cell whose gates stay open: that is a fractional integral, which fades as t**(alpha - 1) / Gamma(alpha), by a
power law. An ordinary LSTM holds the impulse for ever, or lets it fade exponentially.

Run:  python examples/streaming_memory.py [--quick]
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
    forget = 40.0 if keep == 1 else math.log(keep / (1 - keep))
    layer.bias_ih_l0.copy_(torch.tensor([40.0, forget, 0.0, 40.0]))  # the gates of input and output are 1 to rounding
    return layer


def trace(layer, n, size=1e-3):
    """What is left of an impulse in the cell, as a part of it, sample by sample."""
    x = torch.nn.functional.pad(torch.full((1, 1), size, dtype=torch.float64), (0, 0, 0, n - 1))
    return torch.atanh(streamed(layer, x)[0][:, 0]).numpy() / math.tanh(size)


def power_law(alpha, n):
    """The weights of the fractional integral: Gamma(k + alpha) / (Gamma(alpha) k!), about k**(alpha - 1)."""
    return np.cumprod(np.concatenate([[1.0], 1 - (1 - alpha) / np.arange(1, n)]))


def picture(traces, sizes, cells, path):  # cells: bytes of all layers, series and units at one sample
    figure, samples = Figure(figsize=(9, 3.6), layout="constrained"), np.arange(1, len(sizes) + 1)
    left = figure.add_subplot(1, 2, 1, title="An impulse in the cell", xlabel="samples since", ylim=(1e-4, 2))
    right = figure.add_subplot(1, 2, 2, title="Memory", xlabel="samples", ylabel="bytes")
    for name, found in traces.items():
        left.loglog(samples, found, label=name)
    left.loglog(samples, np.transpose([power_law(alpha, len(sizes)) for alpha in ALPHAS]), "k:", linewidth=1)
    left.legend(fontsize=8)
    right.loglog(samples, sizes, samples, cells * samples, "--")
    right.legend(["state of the layer", "all cells so far"], fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    n = 400 if arguments.quick else 10_000
    torch.manual_seed(0)
    layer, x = FractionalLSTM(3, 16, 2, alpha=0.6, dtype=torch.float64), torch.randn(n, 8, 3, dtype=torch.float64)
    found, sizes = streamed(layer, x)
    off = (found - layer(x)[0]).abs().max().item()
    print(f"{n} samples one at a time: at most {off:.1e} from one call; the state takes {sizes[-1]} bytes throughout")
    assert off < 1e-10
    assert sizes[0] == sizes[-1]
    traces = {f"alpha = {alpha}": trace(with_open_gates(alpha), n) for alpha in ALPHAS}
    traces[f"LSTM, forget gate {FORGETS}"] = trace(with_open_gates(1.0, keep=FORGETS), n)
    print(f"what is left of an impulse after {n} samples")
    for alpha, found in zip(ALPHAS, traces.values(), strict=False):
        error = np.abs(found / power_law(alpha, n) - 1).max()
        slope = math.log2(found[-1] / found[n // 2 - 1])
        print(f"  alpha={alpha}: {found[-1]:.5f}, falls as t**{slope:.4f}; closed form to {error:.0e}")
        assert error < 1e-10
        assert abs(slope - (alpha - 1)) < 5e-3
    print(f"  an ordinary cell that keeps {FORGETS} a step: {FORGETS ** (n - 1):.0e}")
    picture(traces, sizes, 2 * 8 * 16 * x.element_size(), arguments.output / "streaming_memory.png")


if __name__ == "__main__":
    main()
