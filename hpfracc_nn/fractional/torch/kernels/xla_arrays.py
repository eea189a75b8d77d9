"""Torch's arrays lent to XLA for one call, over DLPack, and what XLA compiled.

JAX is imported when a kernel first runs, never to refuse or to be ranked, and nothing is set for the process: 64 bit
types are enabled around a call, for its thread. Whoever starts JAX opens every platform that it has; where that may be
an accelerator, whose memory JAX reserves, the kernels refuse until JAX_PLATFORMS names the CPU or the user loaded JAX
himself. JAX is multithreaded, so a process that was forked after JAX was loaded must not use it.

Data on a CUDA device stay there. Nobody waits: DLPack makes XLA's stream wait for torch's, and torch's for XLA's before
the result is read, so that memory which torch hands out again afterwards is no longer used. JAX reserves three quarters
of a device when it opens it, unless it was told not to: the kernels refuse to be the ones who start that.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.scratch import scratch
from hpfracc_nn.selection import Compilation, Workload, ask_again_after_fork
from hpfracc_nn.selection.installed import find_spec

Array = Any  # a jax.Array, or what stands for one while a function is traced
Step = Callable[..., tuple[Array, ...]]

# Of a pass, in small calls of torch, of 5 us on the core where it was measured: the way to XLA and back takes 40, and a
# compilation up to 100000 (0.15 to 0.5 s), which is shared as if each shape were computed ten times.
LAUNCHES = 40 + 100_000 // 10

_ALIGNED = 64  # bytes: XLA copies what lies elsewhere
_ACCELERATORS = ("jax_plugins", "libtpu")  # the packages through which JAX finds other platforms
_CUDA = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_FORKED = "this process was forked after JAX was loaded; start DataLoader workers with multiprocessing_context='spawn'"
_operands: WeakKeyDictionary[Form, tuple[Array, ...]] = WeakKeyDictionary()
_forked = False


def bucket(count: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, ...: fewer shapes to compile, for less than half as much again."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def compute(step: Step, data: tuple[Tensor, ...], shape: tuple[int, ...], operands: tuple[Array, ...]) -> list[Tensor]:
    """Return what the compiled `step` makes of data and operands, when it is finished, as tensors over its memory.

    No array that shares memory with `data` outlives the call: torch may write into it at once.

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


def kept(form: Form, make: Callable[[], tuple[Tensor, ...]], step: Step | None = None) -> tuple[Array, ...]:
    """Return the tensors that `make` makes of a form, through `step` if there is one, as XLA's arrays, made once."""
    found = _operands.get(form)
    if found is None:
        jax = _jax()
        with jax.enable_x64(True):
            # Copies, which nobody else can write into.
            found = tuple(jax.dlpack.from_dlpack(each.detach().clone().contiguous()) for each in make())
            if step is not None:
                found = _compiled(step)(*found)
        _operands[form] = form.charge(found)
    return found


def refuses(workload: Workload) -> str | None:
    """What both kernels need: data where JAX computes, and a JAX that may be started here."""
    kind = workload.device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        return f"it computes on the CPU and on CUDA devices, and the data lie on {workload.device}"
    if find_spec("jax") is None:
        return "JAX is not installed; pip install 'hpfracc-nn[jax]'"
    if _forked:
        return _FORKED
    return _platform_refusal() if kind == "cpu" else _cuda_refusal()


def compiles(workload: Workload) -> Compilation | None:
    """JAX is not started unasked: after its threads a fork is dangerous. What compiles, the estimate counts."""
    return None if "jax" in sys.modules else Compilation(math.inf, "jax")


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

    return jax


@cache
def _compiled(step: Step) -> Step:
    return _jax().jit(step)


def _padded(use: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return x itself where XLA can read it in place, else a padded copy in working memory."""
    x = x.detach()  # DLPack lends nothing that wants a gradient
    if x.shape == shape and x.data_ptr() % _ALIGNED == 0:
        return x
    batch, _, n, _ = x.shape
    room = scratch(use, shape, x)
    room[batch:] = 0
    room[:batch, :, n:] = 0
    room[:batch, :, :n] = x
    return room


def _after_fork() -> None:
    global _forked
    if sys.modules.get("jaxlib") is not None:
        _forked = True
        ask_again_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
