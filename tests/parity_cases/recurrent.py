"""The recurrent layers, with torch's weights as the inputs of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.parity_cases import Arrays, ParityCase

UNITS, BATCH, FEATURES = 4, 2, 3
GATES = {"lstm": 4, "gru": 3}


def names_of(options: dict[str, Any]) -> list[tuple[str, int]]:
    """Return torch's suffix and the number of inputs of each cell."""
    directions = ("", "_reverse") if options.get("bidirectional") else ("",)
    outputs = options.get("proj_size") or UNITS
    found = []
    for layer in range(options.get("num_layers", 1)):
        width = outputs * len(directions) if layer else FEATURES
        found += [(f"_l{layer}{direction}", width) for direction in directions]
    return found


def drawn(kind: str, n: int, options: dict[str, Any], shape: tuple[int, ...]) -> Callable[..., dict[str, np.ndarray]]:
    def inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
        outputs, rows = options.get("proj_size") or UNITS, GATES[kind] * UNITS
        cells = names_of(options)
        found = {
            "x": rng.standard_normal((BATCH, n, FEATURES)),
            "raw": rng.standard_normal(shape),
            "h": rng.standard_normal((BATCH, len(cells), outputs)),
        }
        if kind == "lstm":
            found["c"] = rng.standard_normal((BATCH, len(cells), UNITS))
        for suffix, width in cells:
            found["weight_ih" + suffix] = 0.5 * rng.standard_normal((rows, width))
            found["weight_hh" + suffix] = 0.5 * rng.standard_normal((rows, outputs))
            found["bias_ih" + suffix] = 0.5 * rng.standard_normal(rows)
            found["bias_hh" + suffix] = 0.5 * rng.standard_normal(rows)
            if outputs != UNITS:
                found["weight_hr" + suffix] = 0.5 * rng.standard_normal((outputs, UNITS))
        return found

    return inputs


def on_torch(kind: str, options: dict[str, Any], shape: tuple[int, ...]) -> Callable[[Arrays], Any]:
    def call(given: Arrays) -> Any:
        import torch

        from hpfracc_nn.layers import torch as layers

        layer_class = {"lstm": layers.FractionalLSTM, "gru": layers.FractionalGRU}[kind]
        alpha = [0.5] * shape[0] if shape else 0.5
        how = {"alpha": alpha, "learn_alpha": True, "batch_first": True, "dtype": given["x"].dtype, **options}
        layer = layer_class(FEATURES, UNITS, **how)
        weights = {name: each for name, each in given.items() if name.startswith(("weight", "bias"))}
        start = given["h"].transpose(0, 1).contiguous()
        if kind == "lstm":
            start = start, given["c"].transpose(0, 1).contiguous()
        every = {**weights, "order.raw": given["raw"]}
        out, last = torch.func.functional_call(layer, every, (given["x"], start))
        parts = last if kind == "lstm" else (last,)
        return out, *(each.transpose(0, 1) for each in parts)

    return call


def on_jax(kind: str, options: dict[str, Any], shape: tuple[int, ...]) -> Callable[[Arrays], Any]:
    def call(given: Arrays) -> Any:
        from hpfracc_nn.layers.flax import functional

        layer_class = {"lstm": functional.FractionalLSTM, "gru": functional.FractionalGRU}[kind]
        alpha = [0.5] * shape[0] if shape else 0.5
        core = layer_class(FEATURES, UNITS, alpha=alpha, learn_alpha=True, **options)
        params = {
            name: cell(kind, given, suffix) for name, (suffix, _) in zip(core.names, names_of(options), strict=True)
        }
        params["order"] = {"raw": given["raw"]}
        start = (given["c"], given["h"]) if kind == "lstm" else given["h"]
        state, out = core(params, given["x"], initial_carry=start, return_carry=True)
        return (out, state.h, state.value) if kind == "lstm" else (out, state.h)

    return call


def cell(kind: str, given: Arrays, suffix: str) -> dict[str, Any]:
    """Return the parameters of a cell for Flax: torch's GRU has a bias more than it needs for two of its gates."""
    first, second = given["bias_ih" + suffix], given["bias_hh" + suffix]
    made = {
        "dense_i": {"kernel": given["weight_ih" + suffix].T},
        "dense_h": {"kernel": given["weight_hh" + suffix].T},
    }
    if kind == "lstm":
        made["dense_h"]["bias"] = first + second
    else:
        made["dense_i"]["bias"] = first + second.at[2 * UNITS :].set(0)
        made["dense_h"]["bias"] = second[2 * UNITS :]
    if "weight_hr" + suffix in given:
        made["projection"] = {"kernel": given["weight_hr" + suffix].T}
    return made


def case(
    name: str,
    kind: str,
    n: int,
    options: dict[str, Any] | None = None,
    shape: tuple[int, ...] = (),
    slow: bool = True,
    cancels: bool = False,
) -> ParityCase:
    given = options or {}
    return ParityCase(
        name,
        drawn(kind, n, given, shape),
        on_torch(kind, given, shape),
        on_jax(kind, given, shape),
        slow=slow,
        cancels=cancels,
    )


CASES = [
    case("FractionalLSTM", "lstm", 5),
    case("FractionalGRU", "gru", 5),
    case(
        "FractionalLSTM each unit both ways",
        "lstm",
        70,
        {"num_layers": 2, "bidirectional": True},
        (UNITS,),
        cancels=True,  # of a bias 1.04e-6 itself
    ),
    case("FractionalGRU each unit two layers", "gru", 70, {"num_layers": 2}, (UNITS,)),
    case("FractionalLSTM projection window", "lstm", 40, {"proj_size": 2, "memory": 7}),
]
