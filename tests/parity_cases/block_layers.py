"""Blocks, the graph layer and features of roughness: the same weights and inputs in both frameworks."""

import functools
from typing import Any

import numpy as np

from tests.parity_cases import ParityCase, parity

STEPS, END, WIDTH = 5, 1.5, 3
# Node 5 is isolated, node 4 has a self loop and no other edge arrives there, and one edge is there twice.
EDGES = np.array([[0, 1, 1, 2, 2, 3, 3, 0, 4, 4, 0], [1, 0, 2, 1, 3, 2, 0, 3, 4, 0, 1]])
NODES, CHANNELS = 6, 4


def field_inputs(names, orders):
    """Weights [in, out] and biases of as many fields, a state and the orders before the sigmoid."""

    def draw(rng):
        fields = {name: rng.standard_normal((WIDTH, WIDTH)) for name in names}
        biases = {f"{name}_bias": rng.standard_normal(WIDTH) for name in names}
        return {"x": rng.standard_normal((2, WIDTH)), "raw": rng.standard_normal(orders), **fields, **biases}

    return draw


@functools.cache
def torch_field():
    """tanh(W z + b) cos(t), or that plus 1.5."""
    import torch

    class Field(torch.nn.Module):
        def __init__(self, dtype, plus=0.0):
            super().__init__()
            self.net = torch.nn.Linear(WIDTH, WIDTH, dtype=dtype)
            self.plus = plus

        def forward(self, t, z):
            return torch.tanh(self.net(z)) * torch.cos(t) + self.plus

    return Field


def jax_field(plus=0.0):
    from jax import numpy as jnp

    def field(t, z, variables):
        kernel, bias = variables
        return jnp.tanh(z @ kernel + bias[None]) * jnp.cos(t) + plus

    return field


def torch_block(given, options):
    from torch.func import functional_call

    from hpfracc_nn.layers.torch import FDEBlock

    dtype = given["x"].dtype
    alpha = [0.5] * WIDTH if given["raw"].ndim else 0.5
    block = FDEBlock(torch_field()(dtype), alpha, t1=END, n_steps=STEPS, learn_alpha=True, dtype=dtype, **options)
    weights = {"f.net.weight": given["f"].T, "f.net.bias": given["f_bias"], "order.raw": given["raw"]}
    return functional_call(block, weights, (given["x"],))


def jax_block(given, options):
    from hpfracc_nn.layers.flax import functional

    alpha = [0.5] * WIDTH if given["raw"].ndim else 0.5
    core = functional.FDEBlock(jax_field(), alpha, t1=END, n_steps=STEPS, learn_alpha=True, **options)
    return core({"order": {"raw": given["raw"]}}, given["x"], (given["f"], given["f_bias"]))


def increments(streams):
    """The same Brownian increments in both frameworks and in every precision; a memory reads a second stream."""
    drawn = np.random.default_rng(5).standard_normal((STEPS, 2, 2, WIDTH)) * np.sqrt(END / STEPS)
    return drawn if streams == 2 else drawn[:, 0]


def torch_stochastic(given, has_memory):
    import torch
    from torch.func import functional_call

    from hpfracc_nn.layers.torch import FSDEBlock
    from tests.sde_cases import Given

    dtype, field = given["x"].dtype, torch_field()
    noise = Given(torch.as_tensor(increments(1 + has_memory)))
    alpha: dict[str, Any] = {"alpha": 0.8, "learn_alpha": True} if has_memory else {}
    block = FSDEBlock(field(dtype), field(dtype, 1.5), noise=noise, t1=END, n_steps=STEPS, dtype=dtype, **alpha)
    weights = {
        "equation.drift.net.weight": given["f"].T,
        "equation.drift.net.bias": given["f_bias"],
        "equation.diffusion.net.weight": given["g"].T,
        "equation.diffusion.net.bias": given["g_bias"],
        **({"equation.order.raw": given["raw"]} if has_memory else {}),
    }
    return functional_call(block, weights, (given["x"],))


def jax_stochastic(given, has_memory):
    import jax

    from hpfracc_nn.layers.flax import functional
    from hpfracc_nn.solvers.noise import Given

    noise = Given(increments(1 + has_memory))
    alpha: dict[str, Any] = {"alpha": 0.8, "learn_alpha": True} if has_memory else {}
    core = functional.FSDEBlock(jax_field(), jax_field(1.5), noise=noise, t1=END, n_steps=STEPS, adjoint=False, **alpha)
    params = {"order": {"raw": given["raw"]}} if has_memory else {}
    return core(
        params, given["x"], ((given["f"], given["f_bias"]), (given["g"], given["g_bias"])), noise_key=jax.random.key(0)
    )


def graph_inputs(func, orders):
    width = {"lin": (3, CHANNELS), "query": (CHANNELS, CHANNELS), "key": (CHANNELS, CHANNELS)}
    names = list(width) if func == "attention" else ["lin"]

    def draw(rng):
        kernels = {name: rng.standard_normal(width[name]) for name in names}
        biases = {f"{name}_bias": rng.standard_normal(CHANNELS) for name in names}
        weight = rng.uniform(0.3, 2.0, EDGES.shape[1])
        return {
            "x": rng.standard_normal((NODES, 3)),
            "weight": weight,
            "raw": rng.standard_normal(orders),
            **kernels,
            **biases,
        }

    return draw


def graph_options(given, func):
    alpha = [0.5] * CHANNELS if given["raw"].ndim else 0.5
    heads = 2 if func == "attention" else 1
    return {"func": func, "heads": heads, "alpha": alpha, "t1": 2.0, "n_steps": STEPS, "learn_alpha": True}


def torch_graph(given, func):
    import torch
    from torch.func import functional_call

    from hpfracc_nn.layers.torch import FractionalGraphConv

    layer = FractionalGraphConv(3, CHANNELS, dtype=given["x"].dtype, **graph_options(given, func))
    places = {"lin": "lin", "query": "func.query", "key": "func.key"}
    weights = {"order.raw": given["raw"]}
    for name, place in places.items():
        if name in given:
            weights |= {f"{place}.weight": given[name].T, f"{place}.bias": given[f"{name}_bias"]}
    return functional_call(layer, weights, (given["x"], torch.as_tensor(EDGES), given["weight"]))


def jax_graph(given, func, is_matrix):
    from jax import numpy as jnp

    from hpfracc_nn.layers.flax import functional

    core = functional.FractionalGraphConv(3, CHANNELS, **graph_options(given, func))
    made = {
        name: {"kernel": given[name], "bias": given[f"{name}_bias"]}
        for name in ("lin", "query", "key")
        if name in given
    }
    params = {"lin": made.pop("lin"), "order": {"raw": given["raw"]}, **({"attention": made} if made else {})}
    if is_matrix:
        places = np.eye(NODES)[EDGES[1]][:, :, None] * np.eye(NODES)[EDGES[0]][:, None]  # of each edge, one
        matrix = jnp.tensordot(given["weight"], jnp.asarray(places, given["x"].dtype), 1)
        return core(params, given["x"], adjacency=matrix)
    return core(params, given["x"], jnp.asarray(EDGES), given["weight"])


def torch_features(given):
    from torch.func import functional_call

    from hpfracc_nn.layers.torch import RoughnessFeatures

    layer = RoughnessFeatures(2, 3, learn_alpha=True, skip=3, dt=0.5, dtype=given["x"].dtype)
    raws = {f"differences.parts.{k}.raw": given["raw"][list(index)] for k, index in enumerate(([0, 3], [1, 2, 4, 5]))}
    return functional_call(layer, raws, (given["x"].mT,))


def jax_features(given):
    from hpfracc_nn.layers.flax import functional

    core = functional.RoughnessFeatures(2, 3, learn_alpha=True, skip=3, dt=0.5)
    return core({"order": {"raw": given["raw"]}}, given["x"])


def of_block(name, orders, slow=True, **options):
    return ParityCase(
        f"FDEBlock {name}",
        field_inputs(("f",), orders),
        lambda given: torch_block(given, options),
        lambda given: jax_block(given, options),
        slow=slow,
    )


def of_stochastic(name, has_memory):
    moved = ("x", "f", "f_bias", "g", "g_bias", *(["raw"] if has_memory else []))
    return ParityCase(
        f"FSDEBlock {name}",
        field_inputs(("f", "g"), ()),
        lambda given: torch_stochastic(given, has_memory),
        lambda given: jax_stochastic(given, has_memory),
        differentiable=moved,
        slow=True,
    )


def of_graph(name, func, orders, is_matrix=False, slow=True):
    draw = graph_inputs(func, orders)
    moved = {key for key in draw(np.random.default_rng(0)) if key != "key_bias"}  # it moves all scores of a node alike
    return ParityCase(
        f"FractionalGraphConv {name}",
        draw,
        lambda given: torch_graph(given, func),
        lambda given: jax_graph(given, func, is_matrix),
        differentiable=tuple(sorted(moved)),
        # Scores have the gradients that are left where those of a node's messages cancel: in float32 torch's are up to
        # 1.8e-5 off its own in float64; 7.6e-6 measured, against the terms.
        tolerance={"float64": 1e-12, "float32": 1.5e-5} if func == "attention" else parity(),
        slow=slow,
        cancels=func == "attention",
    )


CASES = [
    of_block("rectangle", ()),
    of_block("predictor_corrector of three orders", (WIDTH,), scheme="predictor_corrector"),
    of_stochastic("euler", False),
    of_stochastic("with memory", True),
    of_graph("attention", "attention", ()),
    of_graph("attention on a matrix", "attention", (CHANNELS,), is_matrix=True),
    of_graph("means", "diffusion", ()),
    ParityCase(
        "RoughnessFeatures",
        lambda rng: {"x": rng.standard_normal((2, 40, 2)), "raw": rng.standard_normal(6)},
        torch_features,
        jax_features,
        slow=True,
    ),
]
