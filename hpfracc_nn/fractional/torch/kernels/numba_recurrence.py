"""Causal Toeplitz product by the exponentials' recurrence, compiled by Numba: the whole operator in one pass over the data.

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

from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.frame import Frame
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_CHUNK = 16
_PANEL = 8  # chunks
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
    _, into, _, decay, powers = form.cached(Forward)
    channels, states = form.near.shape[0], form.far.shape[1]
    data, grad, width = _view(x), _view(g), x.shape[3]
    compiled, boundary = _compiled(width), _boundary(frame)
    terms = 0 if frame.columns is None else frame.columns.shape[0]
    n, parts = x.shape[2], _parts(x)
    near = np.zeros((parts, channels, _CHUNK, _CHUNK))
    far = np.zeros((parts, channels, decay.shape[1], _CHUNK))
    columns = np.zeros((parts, terms, channels, n), data.dtype)

    def work(part: int, begin: int, end: int) -> None:
        if width > 1:
            one = into[0], decay, powers, *boundary, near[part, 0], far[part, 0], columns[part, :, 0]
        else:
            one = into[0], decay, powers, *boundary, near[part], far[part], columns[part]
        compiled.gram(data, grad, begin, end, *one)

    _threads().spread(work, _units(data, compiled), parts)
    sums = [torch.from_numpy(found.sum(axis=0)).to(x.dtype) for found in (near, far[:, :, :states], columns)]
    return tuple(sums if terms else sums[:2])


def cost(workload: Workload) -> Cost:
    chunks = -(-workload.n // _CHUNK)
    k = workload.exponentials
    samples = workload.rows * workload.width * chunks * _CHUNK
    passes = 1 + workload.needs_gradient + workload.learns_weights
    return Cost(
        flops={"matmul": samples * (2.0 * _CHUNK + 4.0 * k) * passes},
        bytes=2.0 * passes * workload.bytes,
        launches=passes,
        workspace=0.0,
    )


def refuses(workload: Workload) -> str | None:
    if workload.device != "cpu":
        return f"it computes on the CPU and the data lie on {workload.device}"
    if find_spec("numba") is None:
        return "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    if workload.exponentials == 0 and workload.n > _CHUNK:
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return None


def saves(workload: Workload) -> float:
    """The data, where the weights are learned; nothing else."""
    return float(workload.bytes if workload.learns_weights else 0)


def _apply(operands: Operands, frame: Frame, x: Tensor, y: Tensor, direction: str) -> None:
    data, result, width = _view(x), _view(y), x.shape[3]
    compiled = _compiled(width)
    function = getattr(compiled, direction)
    columns, boundary = _columns(frame, data), _boundary(frame)
    if width > 1:
        near, into, out, *decays = operands
        operands, columns = Operands(near[0], into[0], out[0], *decays), columns[:, 0]
    parts = _parts(x)
    if parts == 1:
        function(data, result, 0, _units(data, compiled), *operands, columns, *boundary)
        return
    _threads().spread(
        lambda part, begin, end: function(data, result, begin, end, *operands, columns, *boundary),
        _units(data, compiled),
        parts,
    )


def _view(x: Tensor) -> np.ndarray:
    """Return x [batch, channels, n, width] as [signals, n], or as [batch, n, width] where time is in the middle."""
    batch, channels, n, width = x.shape
    array = x.detach().numpy()
    return array.reshape(batch, n, width) if width > 1 else array.reshape(batch * channels, n)


def _columns(frame: Frame, like: np.ndarray) -> np.ndarray:
    return np.empty((0, 1, 0), like.dtype) if frame.columns is None else frame.columns.detach().numpy()


def _boundary(frame: Frame) -> tuple[int, bool, int, int]:
    stencil = frame.stencil
    return stencil.differences, stencil.subtract, stencil.taylor, frame.start


def _units(data: np.ndarray, compiled: Any) -> int:
    return data.shape[0] if data.ndim == 2 else compiled.units(data)


def _parts(x: Tensor) -> int:
    samples = x.numel()
    if samples < 2 * _GRAIN:
        return 1
    return max(1, min(torch.get_num_threads(), samples // _GRAIN, samples // x.shape[2]))


@cache
def _compiled(width: int) -> Any:
    name = "recurrence" if width == 1 else "side_by_side"
    return import_module(f"hpfracc_nn.fractional.numba.{name}")


@cache
def _threads() -> Any:
    return import_module("hpfracc_nn.fractional.numba.threads")


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
        return np.stack([decay, decay ** (_PANEL // 2), decay**_PANEL]), (decay**power).astype(form.near.detach().numpy().dtype)


def _filled(a: np.ndarray, axis: int) -> np.ndarray:
    """Return `a` with zeros up to whole half vectors of states."""
    short = -a.shape[axis] % _FILLED
    if not short:
        return a
    return np.pad(a, [(0, short if i == axis else 0) for i in range(a.ndim)])


register(Kernel("toeplitz", "torch", "numba", "recurrence", run, adjoint, gram, prepare, cost, refuses, saves))
