"""Causal Toeplitz product by the exponentials' recurrence, compiled by Numba: the whole operator in one pass.

The compiled function differences, multiplies and adds the boundary columns block by block, by chunks of 16 samples (see
`fractional/numba/recurrence.py`). Signals are spread over as many threads as torch may use.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.linear import StateSpace, saves
from hpfracc_nn.fractional.numba import kernel
from hpfracc_nn.fractional.torch.tiles import Shape
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(weights: Weights, workload: Workload) -> StateSpace:
    return weights.chunks(kernel.CHUNK)


def run(model: StateSpace, b: Boundary, shape: Shape, x: Tensor, y: Tensor) -> None:
    data, result = _array(x).reshape(shape), y.numpy().reshape(shape)
    kernel.apply("forward", model.cached(kernel.Forward), b.arrays, data, result, torch.get_num_threads)


def adjoint(model: StateSpace, b: Boundary, shape: Shape, g: Tensor, gx: Tensor) -> None:
    grads, result = _array(g).reshape(shape), gx.numpy().reshape(shape)
    kernel.apply("backward", model.cached(kernel.Backward), b.arrays, grads, result, torch.get_num_threads)


def _array(t: Tensor) -> np.ndarray:
    return (t.detach() if t.requires_grad else t).numpy()


register(
    Kernel(
        "toeplitz",
        "torch",
        "numba",
        "recurrence",
        run,
        adjoint,
        prepare,
        kernel.cost,
        kernel.refuses,
        saves,
        kernel.compiles,
    )
)
