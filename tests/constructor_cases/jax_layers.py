"""The cores and modules for JAX, and the transformations that optax takes."""

from functools import partial
from typing import Any

import jax
from flax import linen as flax_linen
from flax import nnx
from jax import numpy as jnp

from hpfracc_nn import jax as fjx
from hpfracc_nn.layers.flax import functional, linen
from hpfracc_nn.solvers.jax import MultiTerm
from tests.constructor_cases import Call

# Flax's own, and initializers, which are the caller's functions; `owner` is who asks, for messages.
FLAX = frozenset(
    "parent name rngs precision padding owner kernel_init recurrent_kernel_init bias_init".split()  # noqa: SIM905
)
OPTAX = frozenset(
    "learning_rate momentum nesterov accumulator_dtype b1 b2 eps eps_root mu_dtype mask weight_decay decay "  # noqa: SIM905
    "initial_scale eps_in_sqrt centered bias_correction key history_dtype".split()
)


def field(t: Any, z: Any, variables: Any) -> Any:
    return -0.5 * z


class NnxField(nnx.Module):
    def __call__(self, t: Any, z: Any) -> Any:
        return -0.5 * z


class LinenField(flax_linen.Module):
    def __call__(self, t: Any, z: Any) -> Any:
        return -0.5 * z


GIVEN: dict[str, dict[str, Any]] = {
    "Alpha": {"start": 0.5, "bounds": (0.0, 1.0)},
    "ProbabilisticAlpha": {"start": 0.5},
    "FDEBlock": {"n_steps": 2},
    "FSDEBlock": {"n_steps": 2},
    "FractionalAttention": {"in_features": 4, "num_heads": 2},
    "FractionalConv1d": {"in_features": 2, "out_features": 2, "kernel_size": 1},
    "FractionalConv2d": {"in_features": 2, "out_features": 2, "kernel_size": 1},
    "FractionalDifference": {"channels": 2},
    "FractionalGraphConv": {"in_features": 2, "out_features": 2, "n_steps": 2},
    "FractionalGRU": {"in_features": 2, "hidden_features": 2},
    "FractionalLSTM": {"in_features": 2, "hidden_features": 2},
    "FractionalLinear": {"in_features": 2, "out_features": 2},
    "RoughnessFeatures": {"channels": 2},
}
FIELDS = {"FDEBlock": ("f",), "FSDEBlock": ("drift", "diffusion")}
INPUTS: dict[str, tuple[int, ...]] = {"FractionalConv2d": (1, 5, 5, 2), "SpectralFractional": (8, 2)}
NO_CALL = ("FractionalGraphConv", "FSDEBlock", "FractionalAttention", "ARFIMA")
CORES = [name for name in vars(functional)["__all__"] if isinstance(getattr(functional, name), type)]


def given(name: str, right_side: Any) -> dict[str, Any]:
    return {**GIVEN.get(name, {}), **dict.fromkeys(FIELDS.get(name, ()), right_side)}


def with_rngs(name: str) -> dict[str, Any]:
    return {**given(name, NnxField()), "rngs": nnx.Rngs(0)}


def use_core(name: str) -> Any:
    """Return what calls a core once, outside of any compiled function."""
    if name in NO_CALL:
        return None

    def use(core: Any) -> Any:
        params = core.init(jax.random.key(0))
        return core(params) if "Alpha" in name else core(params, jnp.zeros(INPUTS.get(name, (1, 5, 2))))

    return use


TRANSFORMATIONS = ("fractional_sgd", "fractional_adam", "fractional_adamw", "fractional_rmsprop", "scale_by_fractional")


def rate(name: str) -> dict[str, Any]:
    return {"alpha": 0.9} if name == "scale_by_fractional" else {"learning_rate": 0.1}


def given_to_nnx(name: str) -> dict[str, Any]:
    return {**given(name, NnxField()), "rngs": nnx.Rngs(0)}


CASES = [
    *(Call(getattr(functional, name), partial(given, name, field), use_core(name), FLAX) for name in CORES),
    *(
        Call(
            getattr(fjx.nnx, name),
            partial(given_to_nnx, name),
            theirs=FLAX,
            slow=True,
        )
        for name in CORES
    ),
    *(Call(getattr(linen, name), partial(given, name, LinenField()), theirs=FLAX) for name in CORES),
    *(Call(getattr(fjx, name), partial(rate, name), theirs=OPTAX) for name in TRANSFORMATIONS),
    Call(MultiTerm, lambda: {"terms": {0.5: 1.0}}),
]
