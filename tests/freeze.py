"""Draw public calls over everything that is registered, run them, and write what they return: `python -m tests.freeze`.

With numbers of rows of `families` only the calls of those are drawn anew.

What a call may not combine it refuses, and another one is drawn. Each is run once more with other kernels: what then
differs by more than the call's tolerance is printed and not kept.
"""

from __future__ import annotations

import collections
import json
import lzma
import multiprocessing
import os
import pathlib
import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

FILE = pathlib.Path(__file__).parent / "reference" / "frozen_calls.json.xz"
SEED = 25

# What a result may differ by, relative to its largest entry (a gradient: to that under weights of one sign).
EXACT = 1e-12  # kernels in float64
EXPONENTIALS = 1e-10  # solves: exponentials for a traced order may be others, implicit schemes stop at 1e-12
LOOSE = 1e-8  # estimates by a search: their last digits follow from where it stops


def name(path: str) -> dict[str, Any]:
    return {"name": path}


def call(path: Any, *args: Any, **kw: Any) -> dict[str, Any]:
    return {"call": path, "args": list(args), "kw": kw}


def leaf(of: str) -> dict[str, str]:
    return {"leaf": of}


class Draw:
    """Random choices, rounded so that they read well."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def number(self, low: float, high: float) -> float:
        return round(self.rng.uniform(low, high), 3)

    def odds(self, part: float) -> bool:
        return self.rng.random() < part

    def length(self) -> int:
        return self.one(1, 2, 3, 5, 17, 40, 64, 100, 129, 300)

    def order(self, low: float = 0.0, high: float = 2.0) -> float:
        return self.one(0.0, 0.5, 1.0) if low == 0.0 and self.odds(0.1) else self.number(low + 0.02, high - 0.02)


ROOT = {"numpy": "hpfracc_nn", "torch": "hpfracc_nn", "jax": "hpfracc_nn.jax"}
OPTIONS: dict[str, Callable[[Draw], dict[str, Any]]] = {
    "tempered_caputo": lambda d: {"rate": d.number(0.1, 3)},
    "tempered_riemann_liouville": lambda d: {"rate": d.number(0.1, 3)},
    "caputo_fabrizio": lambda d: {"unit": d.one(1.0, 0.3)},
    "atangana_baleanu": lambda d: {"unit": d.one(1.0, 0.3), "sense": d.one("caputo", "riemann_liouville")},
    "marchaud": lambda d: {"history": d.one("constant", "zero")},
}


def samples(d: Draw) -> tuple[list[int], int, int]:
    """Return a shape, its time axis, and the axis of channels, or -9."""
    n = d.length()
    return d.one(([n], -1, -9), ([2, n], 1, -9), ([2, 3, n], -1, 1), ([2, n, 3], 1, -1), ([n, 2], 0, -9))


def operator(d: Draw, framework: str, which: str) -> dict[str, Any]:
    """A definition on samples, its order fixed or differentiated in, for all channels or for each."""
    from hpfracc_nn import DEFINITIONS

    kind = DEFINITIONS[which]
    (shape, dim, channels), dt = samples(d), d.one(1.0, 0.1, 0.01, 0.5)
    options = {"scheme": d.one(*kind.schemes), **OPTIONS.get(which, lambda d: {})(d)}
    leaves: dict[str, Any] = {"x": [d.one("normal", "walk"), shape]}
    root = ROOT[framework]
    if which == "distributed_order":
        nodes = {"tuple": [d.number(0.1, 0.4), d.number(0.5, 0.9)]}
        made = call(f"{root}.{kind.__name__}", nodes=nodes, weights={"tuple": [1.0, d.number(0.5, 2)]})
    elif framework != "numpy" and d.odds(0.5):
        low, high = d.one(*[(a, a + 1.0) for a in (0.0, 1.0) if kind.lowest <= a and a + 1 <= kind.highest])
        leaves["alpha"] = ["uniform", d.one([], [shape[channels]] if channels != -9 else []), low + 0.05, high - 0.05]
        made = call(f"{root}.{kind.__name__}", leaf("alpha"), bounds={"tuple": [low, high]}, **options)
    else:
        several = channels != -9 and d.odds(0.3)
        low, high = kind.lowest, kind.highest
        alpha = [d.order(low, min(high, low + 1)) for _ in range(shape[channels])] if several else d.order(low, high)
        made = call(f"{root}.{kind.__name__}", alpha, side=d.one(kind.side, kind.side, "left", "right"), **options)
    if which == "riemann_liouville_integral" and d.odds(0.5):
        return {"leaves": leaves, "call": call(f"{root}.integral", leaf("x"), made, dt=dt, dim=dim)}
    return {"leaves": leaves, "call": call(f"{root}.derivative", leaf("x"), made, dt=dt, dim=dim)}


def multiplier(d: Draw, framework: str, which: str) -> dict[str, Any]:
    from hpfracc_nn import MULTIPLIERS

    root, kind = ROOT[framework], MULTIPLIERS[which].__name__
    shape, dim = d.one(([2, 3, d.length()], -1), ([2, d.length()], 1), ([3, 8, 9], [-2, -1]), ([4, 5, 6], [0, 1, 2]))
    if which != "fractional_laplacian" and isinstance(dim, list):
        dim = -1
    options = {"space": d.one("periodic", "line")} if which == "fractional_laplacian" and d.odds(0.5) else {}
    leaves: dict[str, Any] = {"x": ["normal", shape]}
    alpha: Any = d.number(0.1, 1.9)
    if framework != "numpy" and d.odds(0.5):
        leaves["alpha"], alpha = ["uniform", [], 0.1, 1.9], leaf("alpha")
    dim = {"tuple": dim} if isinstance(dim, list) else dim
    made = call(f"{root}.{kind}", alpha, **options)
    return {"leaves": leaves, "call": call(f"{root}.derivative", leaf("x"), made, dt=d.one(0.5, 1.0), dim=dim)}


def at_times(d: Draw, framework: str, which: str) -> dict[str, Any]:
    """Operators at any times, of a varying order, and what undoes an operator."""
    root, n = ROOT[framework], d.one(2, 5, 30, 70, 130)
    above = d.odds(0.3)
    low = 1.0 if above else 0.0
    leaves: dict[str, Any] = {"x": ["walk", [2, n]]}
    alpha: Any = d.number(low + 0.05, low + 0.95)
    bounds: dict[str, Any] = {}
    if framework != "numpy" and d.odds(0.5):
        leaves["alpha"], alpha = ["uniform", [], low + 0.05, low + 0.95], leaf("alpha")
        bounds = {"bounds": {"tuple": [low, low + 1.0]}}
    kind = d.one("Caputo", "RiemannLiouville", "GrunwaldLetnikov", "RiemannLiouvilleIntegral")
    times = sorted({d.number(0, 3) for _ in range(2 * n)})[:n]
    if which == "times":
        scheme = {} if kind in ("GrunwaldLetnikov", "RiemannLiouvilleIntegral") else {"scheme": d.one("l1", "l1_2")}
        made = call(f"{root}.{kind}", alpha, **scheme, **bounds)
        return {"leaves": leaves, "call": call(f"{root}.derivative", leaf("x"), made, t=times)}
    if which == "variable":
        leaves["alpha"] = ["uniform", [n], 0.1, 0.9]
        where = d.one({"t": times}, {"dt": 0.1})
        return {
            "leaves": leaves,
            "call": call(f"{root}.variable_order", leaf("x"), leaf("alpha"), name(f"{root}.{kind}"), **where),
        }
    made = call(f"{root}.{kind}", alpha, **bounds)
    told: dict[str, Any] = {}
    if kind in ("Caputo", "RiemannLiouvilleIntegral") or (kind == "RiemannLiouville" and above):
        leaves["x0"], told["x0"] = ["normal", [2]], leaf("x0")
    if above and kind == "Caputo":
        leaves["dx0"], told["dx0"] = ["normal", [2]], leaf("dx0")
    return {"leaves": leaves, "call": call(f"{root}.solve", leaf("x"), made, dt=d.one(0.5, 0.1), **told)}


def special(d: Draw, framework: str, which: str) -> dict[str, Any]:
    root = ROOT[framework]
    if which == "mittag_leffler":
        leaves = {
            "z": ["uniform", [d.one(5, 30)], *d.one((-40.0, 2.0), (-1.0, 1.0), (-5.0, 5.0))],
            "alpha": ["uniform", [], 0.2, 1.8],
            "beta": ["uniform", [], 0.5, 2.5],
        }
        return {
            "leaves": leaves,
            "call": call(f"{root}.mittag_leffler", leaf("z"), leaf("alpha"), leaf("beta")),
            "tolerance": 1e-11,  # 1e-13 of a value; of its gradients in the orders, sums of such
        }
    if which == "fractional_fourier":
        leaves = {"x": ["normal", [2, d.one(4, 9, 32, 65)]], "order": ["uniform", [], -2.0, 2.0]}
        return {
            "leaves": leaves,
            "call": call(f"{root}.fractional_fourier", leaf("x"), leaf("order"), centred=d.odds(0.5)),
        }
    shape, axis, _ = samples(d)
    leaves = {"x": ["walk", shape]}
    alpha: Any = d.number(-0.5, 1.9)
    if framework != "numpy" and d.odds(0.5):
        leaves["alpha"], alpha = ["uniform", [], *d.one((0.05, 0.95), (1.05, 1.95))], leaf("alpha")
    more = {"window": d.one(None, 1, 7), "mode": d.one("same", "valid")} if d.odds(0.5) else {}
    return {"leaves": leaves, "call": call(f"{root}.fdiff", leaf("x"), alpha, axis=axis, **more)}


def layer(d: Draw, framework: str, which: str) -> dict[str, Any]:
    return {"torch": torch_layer, "jax": jax_layer}[framework](d, which)


LAYERS = [
    "FractionalLayer",
    "FractionalLinear",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalLSTM",
    "FractionalGRU",
    "FractionalAttention",
    "FractionalGraphConv",
    "SpectralFractional",
    "RoughnessFeatures",
    "ARFIMA",
    "ProbabilisticAlpha",
    "Alpha",
]
DEFINITIONS_OF_LAYERS = ("caputo", "riemann_liouville", "grunwald_letnikov", "caputo_fabrizio", "atangana_baleanu")
EDGES = {"integers": [[0, 1, 1, 2, 2, 3, 3, 0, 4, 4, 0], [1, 0, 2, 1, 3, 2, 0, 3, 4, 0, 1]]}


def common(d: Draw) -> dict[str, Any]:
    """Options that all layers of an operator have, and an order."""
    low = d.one(0.0, 0.0, 1.0)
    return {"alpha": d.number(low + 0.1, low + 0.9), "learn_alpha": d.odds(0.7), "dt": d.one(1.0, 0.5)}


def torch_layer(d: Draw, which: str) -> dict[str, Any]:
    path, wide, n = f"hpfracc_nn.{which}", {"dtype": {"dtype": "float64"}}, d.one(5, 12, 40)
    leaves: dict[str, Any] = {}
    args: list[Any] = [leaf("x")]
    kw: dict[str, Any] = {}
    if which == "FractionalLayer":
        dim, shape = d.one((-1, [2, 3, n]), (1, [2, n, 3]), (-1, [n]))
        several = {"channels": 3} if len(shape) == 3 and d.odds(0.5) else {}
        made = call(path, definition=d.one(*DEFINITIONS_OF_LAYERS), dim=dim, **common(d), **several, **wide)
        leaves["x"] = ["walk", shape]
    elif which == "FractionalLinear":
        made = call(path, 3, 4, d.odds(0.7), definition=d.one(*DEFINITIONS_OF_LAYERS), **common(d), **wide)
        leaves["x"] = ["normal", d.one([2, n, 3], [n, 3])]
    elif which == "FractionalConv1d":
        options = d.one({"padding": "causal"}, {"padding": 1, "stride": 2}, {"dilation": 2, "padding": "same"}, {})
        made = call(path, 4, 6, 3, groups=d.one(1, 2), **options, **common(d), **wide)
        leaves["x"] = ["normal", [2, 4, n]]
    elif which == "FractionalConv2d":
        options = {"dims": {"tuple": d.one([-1], [-2], [-2, -1])}, "padding": d.one(0, 1)}
        made = call(path, 2, 3, 3, **options, **common(d), **wide)
        leaves["x"] = ["normal", [2, 2, 6, 7]]
    elif which == "FractionalDifference":
        bounds = d.one({}, {"bounds": {"tuple": [-0.5, 1.5]}})
        made = call(path, 2, d.one(1, 2, 3), dt=d.one(1.0, 0.5), **bounds, **wide)
        leaves["x"] = ["normal", [2, 2, n]]
    elif which in ("FractionalLSTM", "FractionalGRU"):
        options = {"num_layers": d.one(1, 2), "bidirectional": d.odds(0.3), "batch_first": d.odds(0.5)}
        if which == "FractionalLSTM" and d.odds(0.3):
            options["proj_size"] = 2
        alpha = d.one(d.number(0.2, 0.9), [d.number(0.2, 0.9) for _ in range(4)])
        more = {"memory": d.one(None, 5), "learn_alpha": d.odds(0.7), "alpha": alpha}
        made = call(path, 3, 4, bias=d.odds(0.8), **options, **more, **wide)
        leaves["x"] = ["normal", [d.one(5, 12), 6, 3]]
    elif which == "FractionalAttention":
        options = {"batch_first": True, "add_zero_attn": d.odds(0.2), "bias": d.odds(0.8)}
        made = call(path, 6, 2, alpha=d.number(0.5, 1.9), learn_alpha=d.odds(0.7), **options, **wide)
        leaves["x"], leaves["y"] = ["normal", [2, 4, 6]], ["normal", [2, 5, 6]]
        args = [leaf("x"), leaf("y"), leaf("y")]
        kw = {"need_weights": d.odds(0.5)}
    elif which == "FractionalGraphConv":
        options = {"func": d.one("attention", "diffusion"), "scheme": d.one("rectangle", "predictor_corrector")}
        order = {"alpha": d.number(0.3, 0.9), "learn_alpha": d.odds(0.7)}
        made = call(path, 3, 4, t1=4.0, n_steps=d.one(3, 6), **options, **order, **wide)
        leaves["x"], args = ["normal", [6, 3]], [leaf("x"), EDGES]
    elif which == "SpectralFractional":
        definition = d.one("fractional_laplacian", "periodic_riesz", "periodic_weyl")
        dim, shape = d.one((-1, [2, 3, n]), ({"tuple": [-2, -1]}, [2, 3, 6, 5]))
        dim, shape = (-1, [2, 3, n]) if definition != "fractional_laplacian" else (dim, shape)
        several = {"channels": 3} if d.odds(0.5) else {}
        made = call(path, d.number(0.3, 1.7), definition, dim=dim, learn_alpha=d.odds(0.7), **several, **wide)
        leaves["x"] = ["normal", shape]
    elif which == "RoughnessFeatures":
        made = call(path, 2, d.one(2, 3), learn_alpha=d.odds(0.7), skip=d.one(0, 2), **wide)
        leaves["x"] = ["walk", [2, 2, 40]]
    elif which == "ARFIMA":
        made = call(path, d.one(0, 1, 2), alpha=d.number(0.05, 0.4), **wide)
        leaves["x"] = ["normal", [2, 40]]
    elif which == "ProbabilisticAlpha":
        distribution = d.one("normal", "beta", "uniform")
        args, made = [], call(path, d.number(0.2, 0.8), distribution=distribution, **wide)
    else:
        low = d.one(0.0, 1.0)
        args, made = [], call(path, d.number(low + 0.1, low + 0.9), {"tuple": [low, low + 1]}, **wide)
    found = {"leaves": leaves, "call": {"module": made, "args": args, "kw": kw}}
    return found | ({"tolerance": 1e-10} if "beta" in str(made) else {})  # torch's trigamma


def jax_layer(d: Draw, which: str) -> dict[str, Any]:
    path, n = f"hpfracc_nn.jax.nnx.{which}", d.one(5, 12, 40)
    wide = {"param_dtype": {"dtype": "float64"}, "rngs": {"rngs": 0}}
    leaves: dict[str, Any] = {}
    args: list[Any] = [leaf("x")]
    if which == "FractionalLayer":
        several = {"channels": 3} if d.odds(0.5) else {}
        made = call(path, definition=d.one(*DEFINITIONS_OF_LAYERS), **common(d), **several, **wide)
        leaves["x"] = ["walk", [2, n, 3]]
    elif which == "FractionalLinear":
        made = call(path, 3, 4, definition=d.one(*DEFINITIONS_OF_LAYERS), **common(d), **wide)
        leaves["x"] = ["normal", [2, n, 3]]
    elif which == "FractionalConv1d":
        made = call(path, 4, 6, 3, padding=d.one("SAME", "VALID", "CAUSAL"), **common(d), **wide)
        leaves["x"] = ["normal", [2, n, 4]]
    elif which == "FractionalConv2d":
        made = call(path, 2, 3, {"tuple": [3, 3]}, padding=d.one("SAME", "VALID"), **common(d), **wide)
        leaves["x"] = ["normal", [2, 6, 7, 2]]
    elif which == "FractionalDifference":
        made = call(path, 2, d.one(1, 2, 3), dt=d.one(1.0, 0.5), **wide)
        leaves["x"] = ["normal", [2, n, 2]]
    elif which in ("FractionalLSTM", "FractionalGRU"):
        options = {"num_layers": d.one(1, 2), "bidirectional": d.odds(0.3), "memory": d.one(None, 5)}
        made = call(path, 3, 4, alpha=d.number(0.2, 0.9), learn_alpha=d.odds(0.7), **options, **wide)
        leaves["x"] = ["normal", [2, d.one(5, 12), 3]]
    elif which == "FractionalAttention":
        made = call(path, 6, 2, alpha=d.number(0.5, 1.9), learn_alpha=d.odds(0.7), **wide)
        leaves["x"], leaves["y"] = ["normal", [2, 4, 6]], ["normal", [2, 5, 6]]
        args = [leaf("x"), leaf("y"), leaf("y")]
    elif which == "FractionalGraphConv":
        order = {"alpha": d.number(0.3, 0.9), "learn_alpha": d.odds(0.7)}
        made = call(path, 3, 4, func=d.one("attention", "diffusion"), t1=4.0, n_steps=d.one(3, 6), **order, **wide)
        leaves["x"], args = ["normal", [6, 3]], [leaf("x"), EDGES]
    elif which == "SpectralFractional":
        definition = d.one("fractional_laplacian", "periodic_riesz", "periodic_weyl")
        made = call(path, d.number(0.3, 1.7), definition, learn_alpha=d.odds(0.7), **wide)
        leaves["x"] = ["normal", [2, n, 3]]
    elif which == "RoughnessFeatures":
        made = call(path, 2, d.one(2, 3), learn_alpha=d.odds(0.7), **wide)
        leaves["x"] = ["walk", [2, 40, 2]]
    elif which == "ARFIMA":
        made = call(path, d.one(0, 1, 2), alpha=d.number(0.05, 0.4), **wide)
        leaves["x"] = ["normal", [40, 2]]
    else:
        options = {} if which == "ProbabilisticAlpha" else {"bounds": {"tuple": [0.0, 1.0]}}
        args, made = [], call(path, d.number(0.1, 0.9), **options, **wide)
        if which == "ProbabilisticAlpha" and d.odds(0.5):
            return {"call": {"module": made, "method": "sample", "args": [{"key": 3}, [4]], "kw": {}}}
    return {"leaves": leaves, "call": {"module": made, "args": args, "kw": {}}}


def block(d: Draw, framework: str, which: str) -> dict[str, Any]:
    """Equations as layers and as modules, whose right-hand sides are modules."""
    f, g = ({"network": 3, "plus": plus} for plus in (0.0, 1.5))
    leaves: dict[str, Any] = {"x": ["normal", [2, 3]]}
    wide: dict[str, Any] = {"dtype": {"dtype": "float64"}}
    if framework == "jax":
        wide = {"param_dtype": {"dtype": "float64"}, "rngs": {"rngs": 0}}
    order: dict[str, Any] = {"learn_alpha": d.odds(0.7)}
    steps = d.one(3, 7)
    kw: dict[str, Any] = {}
    root = {"torch": "hpfracc_nn", "jax": "hpfracc_nn.jax.nnx"}[framework]
    args: list[Any] = [leaf("x")]
    if which in ("FDEBlock", "NeuralFDE"):
        order["scheme"] = d.one("rectangle", "predictor_corrector", "trapezoid")
        given: list[Any] = [f, d.number(0.3, 0.9)]
    else:
        given = [f, g]
        order |= {"alpha": d.number(0.6, 0.9), "weights": d.one("hybrid", "average", "left")}
    if which in ("FDEBlock", "FSDEBlock"):
        order |= {"t1": 1.5, "n_steps": steps}
    else:
        args.append([round(0.2 * k, 9) for k in range(steps + 1)])
    if "SDE" in which:
        streams = [2] if order["weights"] == "hybrid" else []
        increments = {"array": ["normal", [steps, *streams, 2, 3]]}
        order["noise"] = call("hpfracc_nn.solvers.Given", increments)
    made = call(f"{root}.{which}", *given, **order, **wide)
    return {"leaves": leaves, "call": {"module": made, "args": args, "kw": kw}, "tolerance": EXPONENTIALS}


def equation(d: Draw, framework: str, which: str) -> dict[str, Any]:
    """Fdeint with every scheme and history."""
    from hpfracc_nn.solvers import HISTORIES, SCHEMES

    solvers = "hpfracc_nn.solvers"
    shape, steps = d.one([2], [2, 3], [1]), d.one(1, 5, 20, 40)
    leaves: dict[str, Any] = {"y0": ["uniform", shape, 0.4, 0.8], "rate": ["uniform", shape[-1:], 0.8, 1.4]}
    scheme: Any = which or d.one(*SCHEMES)
    if d.odds(0.15):
        scheme = d.one(
            call(f"{solvers}.PredictorCorrector", 3),
            call(f"{solvers}.Trapezoid", call(f"{solvers}.FixedPoint")),
            call(f"{solvers}.BDF2", call(f"{solvers}.Newton")),
        )
    kw: dict[str, Any] = {"scheme": scheme}
    if d.odds(0.7):
        kw["history"] = call(f"{solvers}.Window", 7) if d.odds(0.1) else d.one(*[h for h in HISTORIES if h != "window"])
    if d.odds(0.15):
        kw["mesh"] = call(f"{solvers}.Graded", 2.0)
    if d.odds(0.2):
        kw["adjoint"] = False
    above = d.odds(0.2)
    alpha: Any = d.number(1.1, 1.9) if above else d.number(0.3, 1.0)
    if above:
        leaves["dy0"], kw["dy0"] = ["normal", shape], leaf("dy0")
    elif d.odds(0.6):
        leaves["alpha"] = ["uniform", d.one([], shape[-1:]), 0.35, 0.95]
        alpha = leaf("alpha")
    ts = [round(0.8 * k / steps, 9) for k in range(steps + 1)]
    if d.odds(0.3):
        ts, kw["n_steps"] = [0.0, 0.5, 1.0], 2 * steps
    right_side = {"field": "relax", "with": [leaf("rate")]}
    if framework == "torch" and kw.get("adjoint", True) and d.odds(0.5):
        kw["params"] = [leaf("rate")]
    solved = call(f"{ROOT[framework]}.fdeint", right_side, leaf("y0"), ts, alpha, **kw)
    return {"leaves": leaves, "call": solved, "tolerance": EXPONENTIALS}


def stochastic(d: Draw, framework: str, which: str) -> dict[str, Any]:
    """Fsdeint over the rows of its table, driven by given increments or by a noise."""
    from hpfracc_nn.solvers import HISTORIES, STOCHASTIC_SCHEMES, VOLTERRA_WEIGHTS

    steps, dt, root = d.one(3, 7, 20), 0.15, ROOT[framework]
    noise_type = d.one("diagonal", "additive", "scalar", "general")
    memory = d.odds(0.5)
    scheme = "euler" if memory else which
    channels = {"diagonal": 3, "additive": 3, "scalar": 1, "general": 2}[noise_type]
    leaves: dict[str, Any] = {
        "y0": ["normal", [2, 3]],
        "matrix": ["normal", [3, 3]],
        "mix": ["normal", [3, 2]],
    }
    kw: dict[str, Any] = {"scheme": scheme, "dt": dt, "interpretation": d.one("ito", "stratonovich")}
    streams = STOCHASTIC_SCHEMES[scheme].streams
    if memory:
        weights = d.one(*VOLTERRA_WEIGHTS)
        kw |= {"weights": weights, "history": d.one(*[h for h in HISTORIES if h != "window"]), "interpretation": "ito"}
        streams = 2 if weights == "hybrid" else 1
        kw["alpha"] = d.number(0.55, 0.95)
        if d.odds(0.6):
            leaves["alpha"], kw["alpha"] = ["uniform", d.one([], [3]), 0.6, 0.95], leaf("alpha")
    if d.odds(0.5):
        leaves["noise"] = ["normal", [steps, *([2] if streams > 1 else []), 2, channels]]
        given: Any = leaf("noise")
        kw["noise"] = call("hpfracc_nn.solvers.Given", given) if framework == "torch" else given
    else:
        kw["noise"] = noise(d, d.one("brownian", "fractional", "markov_fractional", "coloured"), leaves)
        kw |= {"generator": {"generator": 3}} if framework == "torch" else {"key": {"key": 3}}
    if d.odds(0.2):
        kw["adjoint"] = False
    sde = call(
        "hpfracc_nn.SDE",
        {"field": "turned", "with": [leaf("matrix")]},
        {"field": noise_type, "with": [leaf("mix")]},
        noise_type,
    )
    ts = [0.0, round(dt * (steps // 2), 9), round(dt * steps, 9)]
    solved = call(f"{root}.fsdeint", sde, leaf("y0"), sorted(set(ts)), **kw)
    return {"leaves": leaves, "call": solved, "tolerance": EXPONENTIALS}


def noise(d: Draw, which: str, leaves: dict[str, Any]) -> dict[str, Any]:
    """Return a noise by its name in the registry; its parameters are leaves now and then."""
    from hpfracc_nn.solvers import NOISES

    path = f"hpfracc_nn.solvers.{NOISES[which].__name__}"

    def parameter(of: str, low: float, high: float) -> Any:
        if d.odds(0.5):
            return d.number(low, high)
        leaves[of] = ["uniform", [], low, high]
        return leaf(of)

    if "hurst" in getattr(NOISES[which], "__dataclass_fields__", {}):
        low = d.one(0.1, 0.6)
        states = {"n_states": d.one(4, 8, 16)} if which.startswith("markov") else {}
        return call(path, parameter("hurst", low, low + 0.3), {"tuple": [low - 0.05, round(low + 0.35, 3)]}, **states)
    if which == "coloured":
        return call(path, parameter("time", 0.05, 2.0))
    if which == "alpha_stable":
        return call(path, parameter("stability", 1.2, 1.9), parameter("skewness", -0.8, 0.8))
    if which == "compound_poisson":
        jumps = d.one(
            call("hpfracc_nn.solvers.NormalJumps", parameter("mean", -0.5, 0.5), parameter("deviation", 0.2, 1.0)),
            call("hpfracc_nn.solvers.FixedJumps", parameter("size", 0.2, 1.0)),
            call("hpfracc_nn.solvers.ExponentialJumps", parameter("mean", 0.2, 1.0)),
        )
        return call(path, d.number(2, 20), jumps)
    return call(path)


def motion(d: Draw, framework: str, which: str) -> dict[str, Any]:
    """Increments and paths of every noise."""
    leaves: dict[str, Any] = {}
    made = noise(d, which, leaves)
    root = {"torch": "hpfracc_nn.solvers", "jax": "hpfracc_nn.jax"}[framework]
    drawn = {"generator": {"generator": 5}} if framework == "torch" else {"key": {"key": 5}}
    kw = {"dt": d.one(0.05, 0.5), "dtype": {"dtype": "float64"}, **drawn}
    path = f"{root}.{d.one('increments', 'paths')}"
    return {"leaves": leaves, "call": call(path, made, d.one(1, 9, 40), [d.one(2, 3)], **kw)}


def optimizer(d: Draw, framework: str, which: str) -> dict[str, Any]:
    kind = d.one("integral", "difference", "fcgd", "caputo", "caputo_terminal")
    memory = d.one(4, 10, "exponentials") if kind == "integral" else d.one(4, 10)
    kw: dict[str, Any] = {"alpha": d.one(1.0, d.number(0.5, 0.95)), "kind": kind, "memory": memory}
    sgd = "SGD" in which or "sgd" in which
    if sgd and d.odds(0.5):
        kw |= {"momentum": 0.8, "nesterov": d.odds(0.5)}
    if d.odds(0.3):
        kw["weight_decay"] = 0.1
    rate = d.one(0.05, 0.01)
    leaves = {"a": ["normal", d.one([3, 2], [40])], "b": ["normal", []]}
    start = [leaf("a"), leaf("b")]
    if framework == "torch":
        kw |= {"generator": {"generator": 0}, "lr": rate}
        return {"leaves": leaves, "call": {"descend": call(f"hpfracc_nn.training.{which}", **kw), "from": start}}
    return {"leaves": leaves, "call": {"descend": call(f"hpfracc_nn.jax.{which}", rate, **kw), "from": start}}


def training(d: Draw, framework: str, which: str) -> dict[str, Any]:
    """Losses, estimates from paths, processes, preprocessing, fits."""
    n = d.one(40, 90)
    if which.endswith(("_loss", "_score")):
        root = {"torch": "hpfracc_nn.training", "jax": "hpfracc_nn.jax"}[framework]
        shapes = ([n, 4, 2], [n, 3, 2]) if which != "trajectory_loss" else ([n, 3], [n, 3])
        leaves: dict[str, Any] = {"ys": ["walk", list(shapes[0])], "seen": ["walk", list(shapes[1])]}
        return {"leaves": leaves, "call": call(f"{root}.{which}", leaf("ys"), leaf("seen"))}
    if which in ("whittle", "structure_function"):
        path = {"leaves": {"x": ["walk", [400]]}}
        found = call(f"hpfracc_nn.training.{which}", leaf("x"))
        wanted = "hurst" if which == "whittle" else "moments"
        return {
            **path,
            "call": {"call": name("builtins.getattr"), "args": [found, wanted], "kw": {}},
            "tolerance": LOOSE,
        }
    if which == "FractionalDifferencer":
        options = {"window": d.one(5, 20), "mode": d.one("same", "valid")}
        made = call(f"hpfracc_nn.preprocessing.{which}", d.number(0.1, 0.9), **options)
        fit = call(name("builtins.getattr"), made, "fit_transform")
        return {"leaves": {"x": ["walk", [n, 2]]}, "call": call(fit, leaf("x"))}
    if which in ("arfima", "fgn", "rfsv"):
        rng = {"numpy_rng": d.one(0, 1, 2)}
        args = {"arfima": [n, d.number(-0.4, 0.4), rng], "fgn": [n, d.number(0.1, 0.9), rng], "rfsv": [n, rng]}[which]
        return {"call": call(f"hpfracc_nn.data.{which}", *args)}
    times = {"leaf": "t"}
    leaves = {"t": ["uniform", [n], 0.01, 5.0]}
    return {"leaves": leaves, "call": call(f"hpfracc_nn.data.{which}", times, d.number(0.2, 0.95)), "tolerance": 1e-11}


SCALE = float(os.environ.get("FREEZE", "1"))  # part of the calls that are drawn, for a look at them


def families() -> list[tuple[int, Callable[..., dict[str, Any]], tuple[str, ...], list[str]]]:
    """Return how many calls, what draws them, for which frameworks, over what."""
    from hpfracc_nn import DEFINITIONS, MULTIPLIERS
    from hpfracc_nn.solvers import NOISES, SCHEMES, STOCHASTIC_SCHEMES

    every = ("numpy", "torch", "jax")
    both = ("torch", "jax")
    noises = [each for each in NOISES if each != "given"]
    torch_optimizers = ["FractionalSGD", "FractionalAdam", "FractionalAdamW", "FractionalRMSprop"]
    optax = ["fractional_sgd", "fractional_adam", "fractional_adamw", "fractional_rmsprop"]
    data = ["arfima", "fgn", "rfsv", "creep", "relaxation", "zener"]
    losses = ["trajectory_loss", "moment_loss", "variogram_loss", "energy_score"]
    every_call = [
        (250, operator, ("numpy",), list(DEFINITIONS)),
        (330, operator, ("torch",), list(DEFINITIONS)),
        (120, operator, ("jax",), list(DEFINITIONS)),
        (60, multiplier, every, list(MULTIPLIERS)),
        (210, at_times, every, ["times", "variable", "inverse"]),
        (130, special, every, ["mittag_leffler", "fractional_fourier", "fdiff"]),
        (240, layer, ("torch",), LAYERS),
        (60, layer, ("jax",), LAYERS),
        (40, block, ("torch",), ["FDEBlock", "FSDEBlock", "NeuralFDE", "NeuralFSDE"]),
        (10, block, ("jax",), ["FDEBlock", "FSDEBlock"]),
        (140, equation, ("torch",), list(SCHEMES)),
        (40, equation, ("jax",), list(SCHEMES)),
        (110, stochastic, ("torch",), list(STOCHASTIC_SCHEMES)),
        (40, stochastic, ("jax",), list(STOCHASTIC_SCHEMES)),
        (60, motion, ("torch",), noises),
        (20, motion, ("jax",), noises),
        (70, optimizer, ("torch",), torch_optimizers),
        (20, optimizer, ("jax",), optax),
        (20, training, both, losses),
        (30, training, ("numpy",), [*data, "whittle", "structure_function", "FractionalDifferencer"]),
    ]
    return [(max(3, int(SCALE * count)), *rest) for count, *rest in every_call]  # type: ignore[misc]


def drawn(row: int) -> tuple[list[dict[str, Any]], str]:
    """Return the calls of a family, each with what it returned, and a report."""
    from tests.frozen_calls import Call, difference, summary

    count, draw, frameworks, over = families()[row]
    refused: collections.Counter[str] = collections.Counter()
    kept: list[dict[str, Any]] = []
    tries = 0
    while len(kept) < count:
        tries += 1
        assert tries < 12 * count, (draw.__name__, frameworks, refused.most_common(8))
        seed = row * 100_000 + tries
        framework, which = frameworks[len(kept) % len(frameworks)], over[(len(kept) // len(frameworks)) % len(over)]
        spec: dict[str, Any] = {"family": draw.__name__, "framework": framework, "seed": seed, "tolerance": EXACT}
        try:
            spec |= draw(Draw(SEED * 10_000_000 + seed), framework, which)
            call = Call(spec)
            found, scales = call.run(), call.run(one_sign=True)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as refusal:
            refused[f"refused {framework} {which}: {type(refusal).__name__}: {str(refusal)[:200]}"] += 1
            continue
        results = {key: summary(each, float(abs(scales[key]).max(initial=0))) for key, each in found.items()}
        far = 0.0
        if framework != "jax" or seed % 4 == 0:
            other = again(spec)
            far = max((difference(summary(other[key]), results[key]) for key in results), default=0.0)
        if far > spec["tolerance"]:
            refused[f"apart by other kernels {far:.1e}: {json.dumps(spec)}"] += 1
            continue
        kept.append({**spec, "results": results, "others": far})
    far = max(each["others"] for each in kept)
    lines = [f"{draw.__name__:12} {'/'.join(frameworks):18} {count} of {tries} tried; by other kernels {far:.1e}"]
    return kept, "\n".join([*lines, *(f"{times:4} {reason}" for reason, times in refused.most_common())])


def again(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the results with another kernel than the one that is chosen."""
    import hpfracc_nn as fnn
    from tests.frozen_calls import Call

    algorithm = ("dense", "fft", "recurrence", "chunked_scan")[spec["seed"] % 4]
    fnn.configure(force_algorithm=algorithm)
    try:
        return Call(spec).run()
    except LookupError:
        fnn.configure(force_algorithm=None)
        return Call(spec).run()
    finally:
        fnn.configure(force_algorithm=None)


def main(rows: list[int]) -> None:
    """Write the file, and print what was refused and what other kernels find.

    Args:
        rows: Of `families`, those that are drawn anew; the calls of the others stay. Empty: all.
    """
    os.environ.setdefault("HPFRACC_NN_SELECTION", "prior")
    os.environ.setdefault("HPFRACC_NN_WISDOM", "off")
    calls: list[dict[str, Any]] = []
    if rows:
        kept = map(json.loads, lzma.decompress(FILE.read_bytes()).splitlines())
        calls = [call for call in kept if call["seed"] // 100_000 not in rows]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for found, report in pool.map(drawn, rows or range(len(families()))):
            calls += found
            print(report, flush=True)  # noqa: T201
    text = "\n".join(json.dumps(each, separators=(",", ":")) for each in sorted(calls, key=lambda call: call["seed"]))
    FILE.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{len(calls)} calls, {FILE.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main([int(row) for row in sys.argv[1:]])
