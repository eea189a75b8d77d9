"""Causal Toeplitz product by the exponentials' recurrence, compiled by Numba: the whole operator in one pass.

It differences, multiplies and adds the boundary columns block by block, by chunks of 16 samples (see
`fractional/numba/recurrence.py`). Signals are spread over as many threads as torch may use.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.numba import kernel
from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.frame import Frame, Shape
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Kernel, Workload, register


class Decays:
    """What both directions share."""

    @staticmethod
    def operands(form: ChunkForm) -> tuple[np.ndarray, np.ndarray]:
        return kernel.decays(form.factors, _array(form.near).dtype)


class Forward:
    """Operands of the product."""

    @staticmethod
    def operands(form: ChunkForm) -> kernel.Operands:
        return kernel.forward(_array(form.near), _array(form.far), _array(form.into), form.cached(Decays))


class Backward:
    """Operands of its transpose."""

    @staticmethod
    def operands(form: ChunkForm) -> kernel.Operands:
        return kernel.backward(_array(form.near), _array(form.far), _array(form.into), form.cached(Decays))


def prepare(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(kernel.CHUNK)


def run(form: ChunkForm, frame: Frame, shape: Shape, x: Tensor, y: Tensor) -> None:
    data = (x.detach() if x.requires_grad else x).numpy().reshape(shape)
    result = y.numpy().reshape(shape)
    kernel.apply("forward", form.cached(Forward), frame.arrays, data, result, torch.get_num_threads)


def adjoint(form: ChunkForm, frame: Frame, shape: Shape, g: Tensor, gx: Tensor) -> None:
    grads = (g.detach() if g.requires_grad else g).numpy().reshape(shape)
    result = gx.numpy().reshape(shape)
    kernel.apply("backward", form.cached(Backward), frame.arrays, grads, result, torch.get_num_threads)


def gram(form: ChunkForm, frame: Frame, shape: Shape, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    data, grads, states = _array(x).reshape(shape), _array(g).reshape(shape), form.far.shape[1]
    found = kernel.gram(form.cached(Forward), frame.arrays, data, grads, states, torch.get_num_threads)
    return tuple(torch.from_numpy(part).to(x.dtype) for part in found)


def _array(t: Tensor) -> np.ndarray:
    return t.detach().numpy()


register(
    Kernel(
        "toeplitz",
        "torch",
        "numba",
        "recurrence",
        run,
        adjoint,
        gram,
        prepare,
        kernel.cost,
        kernel.refuses,
        kernel.saves,
    )
)
