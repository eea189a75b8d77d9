"""Causal Toeplitz product by the exponentials' recurrence, compiled by Numba: the whole operator in one pass.

It differences, multiplies and adds the boundary columns block by block, by chunks of 16 samples (see
`fractional/numba/recurrence.py`). Signals are spread over as many threads as torch may use.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.numba.availability import unusable
from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.frame import Frame
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_CHUNK = 16
_PANEL = 8  # chunks
_WHOLE = 64  # samples: what is shorter takes as long
_FILLED = 8  # states are a whole number of half vectors
_GRAIN = 65536  # samples for a thread: a hand-over costs as long as some 20000


class Operands(NamedTuple):
    """What the compiled functions take; see `fractional/numba/recurrence.py`."""

    near: np.ndarray
    into: np.ndarray
    out: np.ndarray
    decay: np.ndarray
    powers: np.ndarray


class Forward:
    """Operands of the product."""

    @staticmethod
    def operands(form: ChunkForm) -> Operands:
        near, far, into = (_array(t) for t in (form.near, form.far, form.into[None]))
        return Operands(near, _filled(into, 2), _filled(far, 1), *_decays(form))


class Backward:
    """Operands of its transpose."""

    @staticmethod
    def operands(form: ChunkForm) -> Operands:
        near, far, into = (_array(t.mT) for t in (form.near, form.far, form.into[None]))
        return Operands(near, _filled(far, 2), _filled(into, 1), *_decays(form))


def prepare(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(_CHUNK)


def run(form: ChunkForm, frame: Frame, x: Tensor, y: Tensor) -> None:
    _apply(form.cached(Forward), frame, x, y, "forward")


def adjoint(form: ChunkForm, frame: Frame, g: Tensor, gx: Tensor) -> None:
    _apply(form.cached(Backward), frame, g, gx, "backward")


def gram(form: ChunkForm, frame: Frame, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    operands, data, grad = form.cached(Forward), x.detach().numpy(), g.detach().numpy()
    columns, *boundary = frame.arrays
    compiled, parts = _compiled(data), _parts(data)
    near, far, terms = (np.zeros((parts, *shape)) for shape in (operands.near.shape, operands.out.shape, columns.shape))

    def work(part: int, begin: int, end: int) -> None:
        compiled.gram(data, grad, begin, end, *operands, columns, *boundary, near[part], far[part], terms[part])

    _threads().spread(work, compiled.units(data), parts)
    states = form.far.shape[1]
    sums = [torch.from_numpy(found.sum(axis=0)).to(x.dtype) for found in (near, far[:, :, :states], terms)]
    return tuple(sums if columns.shape[0] else sums[:2])


def cost(workload: Workload) -> Cost:
    """A product inside the chunks, one into and one out of the states, at the rate of one thread where it uses one."""
    length = -(-workload.n // _WHOLE) * _WHOLE
    width = workload.width if workload.width == 1 else -(-workload.width // _FILLED) * _FILLED
    samples = workload.rows * length * width
    states = -(-workload.exponentials // _FILLED) * _FILLED
    passes = 1 + workload.needs_gradient + workload.learns_weights
    threads = min(workload.threads, max(1, workload.samples // _GRAIN), workload.rows * workload.width)
    return Cost(
        flops={"matmul": samples * (2.0 * _CHUNK + 4.0 * states) * passes * workload.threads / threads},
        bytes=2.0 * passes * workload.bytes,
        launches=1 + workload.needs_gradient + 5 * workload.learns_weights,
    )


def refuses(workload: Workload) -> str | None:
    if workload.device != "cpu":
        return f"it computes on the CPU and the data lie on {workload.device}"
    if find_spec("numba") is None:
        return "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    if workload.exponentials == 0 and workload.n > _CHUNK:
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return unusable()


def saves(workload: Workload) -> float:
    """The data, where the weights are learned; nothing else."""
    return float(workload.bytes if workload.learns_weights else 0)


def _apply(operands: Operands, frame: Frame, x: Tensor, y: Tensor, direction: str) -> None:
    data, result = (x.detach() if x.requires_grad else x).numpy(), y.numpy()
    compiled = _compiled(data)
    function, parts, units = getattr(compiled, direction), _parts(data), compiled.units(data)
    if parts == 1:
        function(data, result, 0, units, *operands, *frame.arrays)
        return
    arrays = frame.arrays
    _threads().spread(
        lambda part, begin, end: function(data, result, begin, end, *operands, *arrays),
        units,
        parts,
    )


def _parts(data: np.ndarray) -> int:
    samples = data.size
    if samples < 2 * _GRAIN:
        return 1
    return max(1, min(torch.get_num_threads(), samples // _GRAIN, samples // data.shape[2]))


def _compiled(data: np.ndarray) -> Any:
    return _room("recurrence" if data.shape[3] == 1 else "side_by_side")


@cache
def _room(name: str) -> Any:
    return import_module(f"hpfracc_nn.fractional.numba.{name}")


def _threads() -> Any:
    return _room("threads")


def _array(t: Tensor) -> np.ndarray:
    return np.ascontiguousarray(t.detach().numpy())


def _decays(form: ChunkForm) -> tuple[np.ndarray, np.ndarray]:
    """Return every state's decay from chunk to chunk and over a panel of them, and its powers in between."""
    return form.cached(Decays)


class Decays:
    """The decays, which both directions share."""

    @staticmethod
    def operands(form: ChunkForm) -> tuple[np.ndarray, np.ndarray]:
        decay = _filled(form.factors, 0)
        power = np.arange(_PANEL)[:, None]
        powers = (decay**power).astype(form.near.detach().numpy().dtype)
        return np.stack([decay, decay ** (_PANEL // 2), decay**_PANEL]), powers


def _filled(a: np.ndarray, axis: int) -> np.ndarray:
    """Return `a` with zeros up to whole half vectors of states."""
    short = -a.shape[axis] % _FILLED
    if not short:
        return a
    return np.pad(a, [(0, short if i == axis else 0) for i in range(a.ndim)])


register(Kernel("toeplitz", "torch", "numba", "recurrence", run, adjoint, gram, prepare, cost, refuses, saves))
