"""Causal Toeplitz products compiled by XLA: torch's arrays are lent to it for one call, over DLPack.

The chunked scan is the products and a scan of log(chunks) levels in one call; the FFT takes any weights. Batch, chunks,
samples and states are rounded up, so that few shapes are compiled; channels and width are the model's own.

JAX is imported when a kernel first runs, never to refuse or to be ranked, and nothing is set for the process: 64 bit
types are enabled around a call, for its thread. Whoever starts JAX opens every platform that it has; where that may be
an accelerator, whose memory JAX reserves, the kernels refuse until JAX_PLATFORMS names the CPU or the user loaded JAX
himself. JAX is multithreaded, so a process that was forked after JAX was loaded must not use it.

Data on a CUDA device stay there. Nobody waits: DLPack makes XLA's stream wait for torch's, and torch's for XLA's before
the result is read, so that memory which torch hands out again afterwards is no longer used. JAX reserves three quarters
of a device when it opens it, unless it was told not to: the kernels refuse to be the ones who start that.

A Workload describes a call by its sizes, dtype and the gradients that it wants; a Cost is what a kernel's time is
estimated from: operations, bytes moved, launches and working memory.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.forks import in_children
from hpfracc_nn.fractional.linear import Column, FFTToeplitz, StateSpace, padded_length, powers, saves
from hpfracc_nn.fractional.torch.kernels import chunked_scan, toeplitz
from hpfracc_nn.fractional.torch.tiles import Multiply, by_tiles, scratch
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, ask_again_after_fork, register
from hpfracc_nn.selection.registry import find_spec

Array = Any  # a jax.Array, or what stands for one while a function is traced
Step = Callable[..., tuple[Array, ...]]

# Of one pass, in small calls of torch, 5 us each on the core that was measured: the way to XLA and back takes 40, and a
# compilation up to 100000 (0.15 to 0.5 s), which is shared as if each shape were computed ten times.
LAUNCHES = 40 + 100_000 // 10

_ALIGNED = 64  # bytes: XLA copies what lies elsewhere
_ACCELERATORS = ("jax_plugins", "libtpu")  # the packages through which JAX finds other platforms
_CUDA = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_FORKED = "this process was forked after JAX was loaded; start DataLoader workers with multiprocessing_context='spawn'"
_forked = False


def bucket(count: int) -> int:
    """Return `count` rounded up to one of 1, 2, 3, 4, 6, 8, 12, 16, ..., so that fewer shapes are compiled.

    The result is less than half as much again as `count`.
    """
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def compute(step: Step, data: tuple[Tensor, ...], shape: tuple[int, ...], operands: tuple[Array, ...]) -> list[Tensor]:
    """Return the results of the compiled `step` on data and operands, as tensors over XLA's memory.

    On a CPU the results are finished. No array that shares memory with `data` outlives the call: torch may write into
    it at once.

    Args:
        step: A pure function of arrays; compiled once for each shape and dtype.
        data: Arrays [batch, channels, n, width], contiguous.
        shape: What each is padded to with zeros, at the end of the batch and of the samples.
        operands: See `kept`.

    Raises:
        RuntimeError: The process was forked after JAX was loaded; XLA would wait for threads that are not there.
    """
    jax = _jax()
    with jax.enable_x64(True):
        lent = [jax.dlpack.from_dlpack(_padded(f"xla {i}", each, shape)) for i, each in enumerate(data)]
        found = _compiled(step)(*lent, *operands)
        if not data[0].is_cuda:  # torch does not know of XLA's threads; on a device DLPack keeps the order of streams
            jax.block_until_ready(found)
        return [torch.from_dlpack(each) for each in found]


def kept(
    operator: Column | StateSpace, make: Callable[[], tuple[Tensor, ...]], step: Step | None = None
) -> tuple[Array, ...]:
    """Return the tensors that `make` returns, put through `step` if given, as JAX arrays; kept with the weights."""
    found: tuple[Array, ...] | None = operator.made.get("xla")
    if found is None:
        jax = _jax()
        with jax.enable_x64(True):
            # Copies, which nobody else can write into.
            found = tuple(jax.dlpack.from_dlpack(each.detach().clone().contiguous()) for each in make())
            if step is not None:
                found = _compiled(step)(*found)
        operator.made["xla"] = found
    return found


def refuses(workload: Workload) -> str | None:
    """Return why XLA's kernels cannot take a workload, by its device or as JAX may not be started here; or None."""
    kind = workload.device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        return f"it computes on the CPU and on CUDA devices, and the data lie on {workload.device}"
    if find_spec("jax") is None:
        return "JAX is not installed; pip install 'hpfracc-nn[jax]'"
    if _forked:
        return _FORKED
    return _platform_refusal() if kind == "cpu" else _cuda_refusal()


_UNASKED = Compilation(math.inf, "jax")


def compiles(workload: Workload) -> Compilation | None:
    """Return None if JAX is loaded, else a Compilation that takes infinitely long: JAX is not started unasked.

    A fork after JAX has started its threads is dangerous. What each shape takes to compile is counted in the cost.
    """
    return None if "jax" in sys.modules else _UNASKED


def _platforms() -> str | None:
    loaded = sys.modules.get("jax")
    return os.environ.get("JAX_PLATFORMS") if loaded is None else loaded.config.jax_platforms


def _cuda_refusal() -> str | None:
    if not any(find_spec(package) for package in _CUDA):
        return "this JAX computes on no CUDA device; pip install 'jax[cuda12]' or 'jax[cuda13]', as the driver has it"
    platforms = _platforms()
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return f"JAX_PLATFORMS={platforms!r} leaves out CUDA; add cuda to it"
    reserves = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in ("false", "0")
    reserves = reserves and os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default").lower() != "platform"
    if "jax" not in sys.modules and reserves:
        return (
            "to start JAX would reserve most of the device's memory; set XLA_PYTHON_CLIENT_PREALLOCATE=false, "
            "or import jax first"
        )
    return None


def _platform_refusal() -> str | None:
    loaded, platforms = sys.modules.get("jax"), _platforms()
    if platforms and "cpu" not in platforms.split(","):
        return f"JAX_PLATFORMS={platforms!r} leaves out the CPU; add cpu to it"
    if loaded is None and not platforms and any(find_spec(package) for package in _ACCELERATORS):
        return "to start JAX would open its accelerator too; set JAX_PLATFORMS=cpu, or import jax first"
    return None


def _jax() -> Any:
    if _forked:
        raise RuntimeError(f"XLA cannot run: {_FORKED}.")
    import jax

    import hpfracc_nn.fractional.jax.arrays  # noqa: F401  JAX's namespace, for the operators' formulas

    return jax


@cache
def _compiled(step: Step) -> Step:
    return _jax().jit(step)


def _padded(use: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x, or a copy padded with zeros to `shape`, where XLA cannot read x itself in place.

    The copy is in working memory, under the name `use`, and stays valid until the next call with the same name.
    """
    x = x.detach()  # DLPack lends nothing that wants a gradient
    if x.shape == shape and x.data_ptr() % _ALIGNED == 0:
        return x
    batch, _, n, _ = x.shape
    room = scratch(use, shape, x)
    room[batch:] = 0
    room[:batch, :, n:] = 0
    room[:batch, :, :n] = x
    return room


@in_children
def _after_fork() -> None:
    global _forked
    if sys.modules.get("jaxlib") is not None:
        _forked = True
        ask_again_after_fork()


def _write(step: Step, x: Tensor, out: Tensor, shape: tuple[int, ...], operands: tuple[Array, ...]) -> None:
    (found,) = compute(step, (x,), shape, operands)
    out.copy_(found[: x.shape[0], :, : x.shape[2]])


_STATES = 8  # states are padded to a multiple of it: their number depends on scheme, dtype and length


def _scan(model: StateSpace, *, step: Step) -> Multiply:
    return lambda x, out: _write(step, x, out, _scan_shape(model, x), _scan_operands(model))


def _scan_shape(model: StateSpace, x: Tensor) -> tuple[int, ...]:
    batch, channels, n, width = x.shape
    return bucket(batch), channels, bucket(n // model.multiple) * model.multiple, width


def _scan_operands(model: StateSpace) -> tuple[Array, ...]:
    def padded() -> tuple[Tensor, ...]:
        more = -model.A[0].shape[0] % _STATES
        B, C, A = F.pad(model.B, (0, more)), F.pad(model.C, (0, 0, 0, more)), F.pad(model.A[0], (0, more))
        return model.intra, C, B, A

    return kept(model, padded)


def _scanned(x: Array, intra: Array, C: Array, B: Array, A: Array) -> tuple[Array]:
    return (_model(x, intra, C, B, A).matvec(x),)


def _scanned_back(g: Array, intra: Array, C: Array, B: Array, A: Array) -> tuple[Array]:
    return (_model(g, intra, C, B, A).rmatvec(g),)


def _model(x: Array, intra: Array, C: Array, B: Array, A: Array) -> StateSpace:
    return StateSpace(intra, C, B, powers(A, x.shape[2] // intra.shape[-1]))


_OPERATIONS = 30  # of one state in the scan and its conversions, measured on one core


def _scan_cost(workload: Workload) -> Cost:
    """Return the cost of the chunked scan, as `Kernel.cost` does, for sizes rounded up by `bucket`.

    XLA's scan is slower than the others, and its launches cost more.
    """
    length = chunked_scan.chunk_length(workload)
    batch = bucket(max(1, workload.rows // workload.channels))
    count = bucket(max(1, -(-workload.n // length)))
    rows, held = batch * workload.channels, 2  # XLA also keeps the arguments and the result for itself
    return chunked_scan.cost_of(workload, rows, count, launches=LAUNCHES, operations=_OPERATIONS, tiles=held)


def _scan_refuses(workload: Workload) -> str | None:
    return refuses(workload) or chunked_scan.refuses(workload)


register(
    Kernel(
        "toeplitz",
        "torch",
        "xla",
        "chunked_scan",
        *by_tiles(partial(_scan, step=_scanned), partial(_scan, step=_scanned_back), turns_narrow=True),
        chunked_scan.prepare,
        _scan_cost,
        _scan_refuses,
        saves,
        compiles,
    )
)


def _fft(column: Column, *, step: Step) -> Multiply:
    return lambda x, out: _write(step, x, out, _fft_shape(x), _fft_operands(column))


def _fft_shape(x: Tensor) -> tuple[int, ...]:
    batch, channels, n, width = x.shape
    return bucket(batch), channels, bucket(n), width


def _fft_operands(column: Column) -> tuple[Array, ...]:
    def padded() -> tuple[Tensor, ...]:
        n = column.weights.shape[1]
        return (F.pad(column.weights, (0, bucket(n) - n))[:, :, None],)

    return kept(column, padded, _spectrum)


def _spectrum(column: Array) -> tuple[Array]:
    """Return the transform in time of the padded weights [channels, n, 1], as complex numbers [channels, n + 1, 1].

    The transform is computed in float64, of the weights and as many zeros, and rounded at the end.
    """
    from jax import numpy as jnp

    dtype = jnp.complex64 if column.dtype == jnp.float32 else jnp.complex128
    return (jnp.fft.rfft(column.astype(jnp.float64), 2 * column.shape[1], axis=1).astype(dtype),)


def _filtered(x: Array, spectrum: Array) -> tuple[Array]:
    return (FFTToeplitz(spectrum, 2 * x.shape[2]).matvec(x),)


def _filtered_back(g: Array, spectrum: Array) -> tuple[Array]:
    return (FFTToeplitz(spectrum, 2 * g.shape[2]).rmatvec(g),)


def _fft_cost(workload: Workload) -> Cost:
    """Return the cost of the FFT, as `Kernel.cost` does, for sizes rounded up by `bucket`.

    Each pass takes two transforms, and launches by XLA.
    """
    size = 2 * bucket(max(1, workload.n))
    batch = bucket(max(1, workload.rows // workload.channels))
    signals = batch * workload.channels * workload.width
    passes = 1 + workload.needs_gradient + workload.learns_weights
    points = 2.0 * signals * size * passes
    return Cost(
        flops={"fft": 2.5 * points * math.log2(size), "elementwise": points},
        bytes=2.0 * points * workload.itemsize,
        launches=passes * LAUNCHES,
        # XLA also keeps the arguments and the result for itself.
        workspace=2 * toeplitz.fft_workspace(workload, padded_length(workload.n)),
    )


register(
    Kernel(
        "toeplitz",
        "torch",
        "xla",
        "fft",
        *by_tiles(partial(_fft, step=_filtered), partial(_fft, step=_filtered_back)),
        toeplitz.prepare,
        _fft_cost,
        refuses,
        saves,
        compiles,
    )
)
