"""Causal Toeplitz product by the exponentials' recurrence, compiled by Numba: the whole operator in one pass.

It differences, multiplies and adds the boundary columns block by block, by chunks of 16 samples (see
`fractional/numba/recurrence.py`). Signals are spread over as many threads as torch may use.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.numba import kernel
from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.tiles import Shape
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Kernel, Workload, register


class Fading:
    """What both directions make of the decays."""

    @staticmethod
    def operands(form: ChunkForm) -> tuple[np.ndarray, np.ndarray]:
        return kernel.decays(form.factors, _array(form.near).dtype)


class Into:
    """The way into the states, as rows of the product's first step and as columns of the transpose's last."""

    @staticmethod
    def operands(form: ChunkForm) -> tuple[np.ndarray, np.ndarray]:
        return kernel.entries(_array(form.into))


class Forward:
    """Operands of the product."""

    @staticmethod
    def operands(form: ChunkForm) -> kernel.Operands:
        into, _ = form.cached_shared(Into)
        return kernel.forward(_array(form.near), _array(form.far), into, form.cached_shared(Fading))


class Backward:
    """Operands of its transpose."""

    @staticmethod
    def operands(form: ChunkForm) -> kernel.Operands:
        _, out = form.cached_shared(Into)
        return kernel.backward(_array(form.near), _array(form.far), out, form.cached_shared(Fading))


def prepare(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(kernel.CHUNK)


def run(form: ChunkForm, b: Boundary, shape: Shape, x: Tensor, y: Tensor) -> None:
    data = _array(x).reshape(shape)
    result = y.numpy().reshape(shape)
    kernel.apply("forward", form.cached(Forward), b.arrays, data, result, torch.get_num_threads)


def adjoint(form: ChunkForm, b: Boundary, shape: Shape, g: Tensor, gx: Tensor) -> None:
    grads = _array(g).reshape(shape)
    result = gx.numpy().reshape(shape)
    kernel.apply("backward", form.cached(Backward), b.arrays, grads, result, torch.get_num_threads)


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
        kernel.saves,
        kernel.compiles,
    )
)
