"""LSTM and GRU with a power-law memory: cells written lag by lag, series by series."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn.layers.torch import FractionalGRU, FractionalLSTM
from tests.layer_cases import Draw, LayerCase

N, FEW = 20, 10  # samples, and those of the case with two layers and two directions


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def averages(alpha: Any, count: int, units: int, memory: int | None) -> np.ndarray:
    """Return a_1, a_2, ... for every unit, [count, units]."""
    a = np.zeros((count + 1, units))
    a[0] = -1.0
    for k in range(1, count + 1):
        a[k] = a[k - 1] * (k - 1 - np.asarray(alpha)) / k
    if memory is not None:
        a[memory + 1 :] = 0
    return a[1:]


def recalled(a: np.ndarray, values: list[np.ndarray]) -> np.ndarray:
    """Return m from the values so far, the newest last."""
    total = np.zeros_like(values[0])
    for k, value in enumerate(reversed(values)):
        total += a[k] * value
    return total


def lstm(layer: Any, weights: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> Any:
    a, out = averages(alpha_of(layer), len(x) + 1, c.shape[-1], layer.memory), []
    cells = [c]
    for each in x:
        gates = each @ weights["weight_ih"].T + h @ weights["weight_hh"].T
        if layer.bias:
            gates = gates + weights["bias_ih"] + weights["bias_hh"]
        i, f, g, o = np.split(gates, 4, axis=-1)
        cells.append(sigmoid(f) * recalled(a, cells) + sigmoid(i) * np.tanh(g))
        h = sigmoid(o) * np.tanh(cells[-1])
        if layer.proj_size:
            h = h @ weights["weight_hr"].T
        out.append(h)
    return np.stack(out), h, cells[-1]


def gru(layer: Any, weights: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> Any:
    a, out = averages(alpha_of(layer), len(x) + 1, h.shape[-1], layer.memory), [h]
    for each in x:
        given, own = each @ weights["weight_ih"].T, out[-1] @ weights["weight_hh"].T
        if layer.bias:
            given, own = given + weights["bias_ih"], own + weights["bias_hh"]
        (gr, gz, gn), (r, z, q) = np.split(given, 3, axis=-1), np.split(own, 3, axis=-1)
        r, z = sigmoid(gr + r), sigmoid(gz + z)
        out.append((1 - z) * np.tanh(gn + r * q) + z * recalled(a, out))
    return np.stack(out[1:]), out[-1], out[-1]


def alpha_of(layer: Any) -> Any:
    return layer.alpha.detach().numpy() if isinstance(layer.alpha, Tensor) else layer.alpha


def reference(layer: Any, x: np.ndarray, hx: Any = None) -> Any:
    """Return (out, (h, c)) of an LSTM or (out, h) of a GRU, without dropout."""
    is_lstm = isinstance(layer, FractionalLSTM)
    x = x.swapaxes(0, 1) if layer.batch_first else x
    directions, hs, cs = 1 + layer.bidirectional, [], []
    for number in range(layer.num_layers):
        outs = []
        for direction in range(directions):
            suffix = f"_l{number}" + ("_reverse" if direction else "")
            names = [name for name, _ in layer.named_parameters() if name.endswith(suffix)]
            weights = {name.removesuffix(suffix): getattr(layer, name).detach().numpy() for name in names}
            h = np.zeros((x.shape[1], layer.proj_size or layer.hidden_size))
            c = np.zeros((x.shape[1], layer.hidden_size))
            if hx is not None:
                row = number * directions + direction
                h, c = (hx[0][row], hx[1][row]) if is_lstm else (hx[row], hx[row])
            out, h, c = (lstm if is_lstm else gru)(layer, weights, x[::-1] if direction else x, h, c)
            outs.append(out[::-1] if direction else out)
            hs.append(h)
            cs.append(c)
        x = np.concatenate(outs, axis=-1)
    out = x.swapaxes(0, 1) if layer.batch_first else x
    return (out, (np.stack(hs), np.stack(cs))) if is_lstm else (out, np.stack(hs))


def ordinary(kind: type[nn.RNNBase]) -> Any:
    """Return what makes torch's own layer with the weights of ours."""

    def made(layer: Any) -> nn.RNNBase:
        options = {name: getattr(layer, name) for name in ("num_layers", "bias", "batch_first", "bidirectional")}
        if layer.proj_size:
            options["proj_size"] = layer.proj_size
        found = kind(layer.input_size, layer.hidden_size, **options, dtype=torch.float64)
        found.load_state_dict(layer.state_dict())
        return found

    return made


def series(draw: Draw, batch: int) -> tuple[Any, ...]:
    return (draw(N, batch, 3),)


def with_start(outputs: int, rows: int) -> Any:
    return lambda draw, batch: (draw(batch, FEW, 3), (draw(rows, batch, outputs), draw(rows, batch, 4)))


def x(*shape: int) -> Tensor:
    return torch.zeros(*shape)


LSTM: Any = FractionalLSTM  # given what its types refuse too
GRU: Any = FractionalGRU
UNITS = [0.2, 0.5, 0.7, 0.95]
CASES = [
    LayerCase(
        FractionalLSTM,
        (3, 4),
        series,
        reference,
        limit=(1.0, ordinary(nn.LSTM)),
        time=0,
        refusals=(
            ("alpha", lambda: LSTM(3, 4, alpha=1.2), ValueError, "0 < alpha <= 1"),
            ("zero", lambda: LSTM(3, 4, alpha=0.0), ValueError, "0 < alpha <= 1"),
            ("bounds", lambda: LSTM(3, 4, learn_alpha=True, bounds=(0.4, 1.5)), ValueError, "0 < alpha <= 1"),
            ("orders", lambda: LSTM(3, 4, alpha=[0.5, 0.6]), ValueError, "hidden_size=4"),
            ("nested", lambda: LSTM(3, 4, alpha=[[0.5]] * 4), ValueError, "flat list"),
            ("tensor", lambda: LSTM(3, 4, alpha=torch.tensor(0.5)), TypeError, "learn_alpha=True"),
            ("memory", lambda: LSTM(3, 4, memory=0), ValueError, "memory >= 1"),
            ("rank", lambda: LSTM(3, 4)(x(3)), ValueError, "three axes"),
            ("inputs", lambda: LSTM(3, 4)(x(5, 2, 2)), ValueError, "input_size=2"),
            ("no steps", lambda: LSTM(3, 4)(x(0, 2, 3)), ValueError, "at least one step"),
            ("dtype", lambda: LSTM(3, 4)(x(5, 2, 3).double()), ValueError, "dtype of its weights"),
            ("array", lambda: LSTM(3, 4)(np.zeros((5, 2, 3))), TypeError, "torch tensor"),
            (
                "start",
                lambda: LSTM(3, 4)(x(5, 2, 3), (x(1, 3, 4), x(1, 2, 4))),
                ValueError,
                r"needs shape \(1, 2, 4\)",
            ),
            ("single", lambda: LSTM(3, 4)(x(5, 2, 3), x(1, 2, 4)), TypeError, r"pass \(h, c\)"),
            (
                "both ways",
                lambda: LSTM(3, 4, bidirectional=True).initial_state((2, 3)),
                ValueError,
                "bidirectional=False",
            ),
            ("state", lambda: LSTM(3, 4).step(x(2, 3), None), TypeError, "initial_state"),
            ("other", lambda: LSTM.from_torch(nn.GRU(3, 4)), TypeError, "torch.nn.LSTM"),
        ),
    ),
    LayerCase(
        FractionalLSTM,
        (3, 4),
        with_start(2, 4),
        reference,
        {"num_layers": 2, "bidirectional": True, "batch_first": True, "proj_size": 2, "memory": 7},
        name="all",
        alphas=(UNITS, 0.4, 0.9),
        limit=(1.0, ordinary(nn.LSTM)),
    ),
    LayerCase(
        FractionalGRU,
        (3, 4),
        series,
        reference,
        {"num_layers": 2},
        limit=(1.0, ordinary(nn.GRU)),
        time=0,
        refusals=(
            ("alpha", lambda: GRU(3, 4, alpha=-0.2), ValueError, "0 < alpha <= 1"),
            ("start", lambda: GRU(3, 4)(x(5, 2, 3), x(1, 2, 5)), ValueError, r"needs shape \(1, 2, 4\)"),
            ("slice", lambda: GRU(3, 4).initial_state((2, 4)), ValueError, r"\(batch, 3\)"),
        ),
    ),
    LayerCase(
        FractionalGRU,
        (3, 4),
        lambda draw, batch: (draw(batch, N, 3), draw(1, batch, 4)),
        reference,
        {"batch_first": True, "bias": False, "memory": 5},
        name="window",
        alphas=(UNITS, 0.4, 0.9),
        limit=(1.0, ordinary(nn.GRU)),
    ),
]
