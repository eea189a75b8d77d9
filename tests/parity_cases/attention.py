"""Power-law attention, with the weights of torch's layer as the inputs of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.parity_cases import Arrays, ParityCase

BATCH, FEATURES, HEADS = 2, 6, 2
SIZE = FEATURES // HEADS


def drawn(queries: int, shape: tuple[int, ...], added: bool, masked: bool) -> Callable[..., dict[str, np.ndarray]]:
    def inputs(rng: np.random.Generator) -> dict[str, np.ndarray]:
        found: dict[str, Any] = {
            "x": rng.standard_normal((BATCH, queries, FEATURES)),
            "in_proj_weight": 0.6 * rng.standard_normal((3 * FEATURES, FEATURES)),
            "in_proj_bias": 0.6 * rng.standard_normal(3 * FEATURES),
            "out_proj.weight": 0.6 * rng.standard_normal((FEATURES, FEATURES)),
            "out_proj.bias": 0.6 * rng.standard_normal(FEATURES),
            "raw": rng.standard_normal(shape),
        }
        if added:
            found["bias_k"], found["bias_v"] = rng.standard_normal((2, 1, 1, FEATURES))
        if masked:
            found["scores"] = rng.standard_normal((queries, queries))
            found["hidden"] = rng.random((BATCH, queries)) < 0.3
        return found

    return inputs


def orders(shape: tuple[int, ...]) -> Any:
    return [1.0] * shape[0] if shape else 1.0


def on_torch(shape: tuple[int, ...], added: bool, causal: bool) -> Callable[[Arrays], Any]:
    def call(given: Arrays) -> Any:
        import torch

        from hpfracc_nn.layers.torch import FractionalAttention

        how = {"alpha": orders(shape), "learn_alpha": True, "batch_first": True, "dtype": given["x"].dtype}
        layer = FractionalAttention(FEATURES, HEADS, add_bias_kv=added, add_zero_attn=added, **how)
        weights = {name: each for name, each in given.items() if name not in ("x", "raw", "scores", "hidden")}
        every = {**weights, "order.raw": given["raw"]}
        options: dict[str, Any] = {"is_causal": causal, "average_attn_weights": False}
        if "scores" in given:
            options |= {"attn_mask": given["scores"], "key_padding_mask": given["hidden"]}
        return torch.func.functional_call(layer, every, (given["x"],) * 3, options)

    return call


def on_jax(shape: tuple[int, ...], added: bool, causal: bool, algorithm: str) -> Callable[[Arrays], Any]:
    def call(given: Arrays) -> Any:
        from hpfracc_nn.layers.flax.functional import FractionalAttention
        from hpfracc_nn.selection import BackendManager, Settings

        settings = Settings(mode="prior", wisdom="off", calibration="shipped", force_algorithm=algorithm)
        how = {"alpha": orders(shape), "learn_alpha": True, "manager": BackendManager(settings)}
        core = FractionalAttention(FEATURES, HEADS, add_bias_kv=added, add_zero_attn=added, **how)
        options: dict[str, Any] = {"is_causal": causal, "need_weights": True}
        if "scores" in given:
            options |= {"bias": given["scores"], "mask": ~given["hidden"][:, None, None]}
        return core(params_of(given), given["x"], **options)

    return call


def params_of(given: Arrays) -> dict[str, Any]:
    """Return torch's weights as Flax has them."""
    kernels, biases = (
        given["in_proj_weight"].reshape(3, FEATURES, FEATURES),
        given["in_proj_bias"].reshape(3, HEADS, SIZE),
    )
    made: dict[str, Any] = {"order": {"raw": given["raw"]}}
    for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        made[name] = {"kernel": kernel.T.reshape(FEATURES, HEADS, SIZE), "bias": bias}
    kernel = given["out_proj.weight"].T.reshape(HEADS, SIZE, FEATURES)
    made["out"] = {"kernel": kernel, "bias": given["out_proj.bias"]}
    for name in ("bias_k", "bias_v"):
        if name in given:
            made[name] = given[name][0, 0].reshape(HEADS, SIZE)
    return made


def case(
    name: str,
    *,
    shape: tuple[int, ...] = (),
    added: bool = False,
    masked: bool = False,
    causal: bool = False,
    algorithm: str = "dense",
    single: float = 1e-6,
    slow: bool = True,
) -> ParityCase:
    return ParityCase(
        name,
        drawn(5, shape, added, masked),
        on_torch(shape, added, causal),
        on_jax(shape, added, causal, algorithm),
        tolerance={"float64": 1e-12, "float32": single},
        slow=slow,
    )


# One order's gradient adds up what all weights say, which cancels: in float32 torch's is up to 2.0e-6 off its own in
# float64; 1.2e-6 measured, and of the blocks, which add up in another order, 2.4e-6.
CASES = [
    case("FractionalAttention", shape=(HEADS,), causal=True),
    case("FractionalAttention masks", masked=True, single=3e-6),
    case("FractionalAttention added keys", added=True, causal=True),
    case("FractionalAttention blocks", shape=(HEADS,), masked=True, algorithm="blocks", single=5e-6),
]
