"""The layers for Flax whose weights `tests/checkpoints.py` keeps, with learned orders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import linen, nnx
from jax import numpy as jnp

import hpfracc_nn.jax as fjx

KEYS = {"params": jax.random.key(0), "noise": jax.random.key(1)}


class LinenField(linen.Module):
    @linen.compact
    def __call__(self, t: Any, z: Any) -> Any:
        return jnp.tanh(linen.Dense(3)(z))


class NnxField(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.Dense_0 = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, t: Any, z: Any) -> Any:
        return jnp.tanh(self.Dense_0(z))


@dataclass(frozen=True)
class FlaxCase:
    """One layer.

    Attributes:
        name: Of the class.
        arguments: Of the constructor, after the right-hand sides.
        options: Likewise; orders are learned.
        shape: Of the first input.
        others: Inputs besides.
        fields: How many right-hand sides it has.
    """

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    shape: tuple[int, ...]
    others: tuple[Any, ...] = field(default=(), repr=False)
    fields: int = 0

    @property
    def inputs(self) -> tuple[Any, ...]:
        x = np.sin(np.arange(1, int(np.prod(self.shape)) + 1)).reshape(self.shape)
        return (x.astype(np.float32), *self.others)

    def linen(self) -> Any:
        fields = (LinenField() for _ in range(self.fields))
        return getattr(fjx.linen, self.name)(*fields, *self.arguments, learn_alpha=True, **self.options)

    def nnx(self, seed: int = 0) -> Any:
        rngs = nnx.Rngs(seed)
        fields = (NnxField(rngs) for _ in range(self.fields))
        return getattr(fjx.nnx, self.name)(*fields, *self.arguments, learn_alpha=True, **self.options, rngs=rngs)


EDGES = np.array([[0, 1, 2, 3, 1, 2], [1, 2, 3, 0, 0, 1]])
CASES = [
    FlaxCase("ARFIMA", (2, 1), {}, (12, 1)),
    FlaxCase("FDEBlock", (0.7,), {"n_steps": 4}, (2, 3), fields=1),
    FlaxCase("FSDEBlock", (), {"alpha": 0.8, "n_steps": 4}, (2, 3), fields=2),
    FlaxCase("FractionalAttention", (4, 2), {"alpha": (1.2, 1.6)}, (2, 5, 4)),
    FlaxCase("FractionalConv1d", (3, 2, 3), {"alpha": 0.4, "padding": "CAUSAL"}, (2, 9, 3)),
    FlaxCase("FractionalConv2d", (3, 2, 3), {"alpha": (0.4, 0.6), "dims": (-3, -2)}, (2, 6, 5, 3)),
    FlaxCase("FractionalDifference", (3, 2), {"bounds": (-1, 2), "start": (-0.4, 1.3)}, (2, 9, 3)),
    FlaxCase("FractionalGRU", (3, 4), {"num_layers": 2, "bidirectional": True}, (2, 9, 3)),
    FlaxCase("FractionalGraphConv", (3, 4), {"alpha": 0.6, "n_steps": 4}, (4, 3), (EDGES,)),
    FlaxCase("FractionalLSTM", (3, 4), {"proj_size": 2, "memory": 5}, (2, 9, 3)),
    FlaxCase("FractionalLayer", (0.4,), {"dt": 0.5}, (2, 9, 3)),
    FlaxCase("FractionalLinear", (3, 2), {"alpha": [0.2, 0.5, 0.7]}, (2, 9, 3)),
    FlaxCase("RoughnessFeatures", (2, 2), {}, (2, 9, 2)),
    FlaxCase("SpectralFractional", (0.7,), {}, (8, 2)),
]
