"""JAX's devices, memory and rates, for selection."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.selection import Rates, register_probe
from hpfracc_nn.selection.memory import host_free
from hpfracc_nn.selection.workload import is_host

_NAMES = {"gpu": "cuda", "cuda": "cuda"}  # JAX's names of platforms that workloads call otherwise


class JaxProbe:
    """JAX's answers about devices: threads, free memory and rates. See `selection.Probe`."""

    framework = "jax"
    waits_to_be_asked = True

    def threads(self) -> int:
        """Number of processors that XLA may use; XLA does not report how many it uses."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def free_memory(self, device: str) -> int | None:
        if is_host(device):
            return host_free()
        found = _device(device).memory_stats()
        return None if not found else int(found["bytes_limit"]) - int(found["bytes_in_use"])

    def release(self, device: str) -> None:
        """Do nothing: XLA frees what nobody holds."""

    def deterministic(self) -> bool:
        """Whether XLA's flags ask for deterministic operations."""
        return "xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")

    def calibrate(self, device: str, dtype: str) -> Rates:
        """Time a matrix product, a transform, two element-wise passes and a small call; half a second to compile.

        Raises:
            RuntimeError: JAX has no such device.
        """
        with jax.enable_x64(True), jax.default_device(_device(device)):
            ones = [jnp.ones(shape, dtype) for shape in ((512, 256), (256, 256), (64, 2048), (1 << 20,), (64,))]
            a, b, signal, large, small = ones
            product = _seconds(jnp.matmul, a, b)
            transform = _seconds(jnp.fft.rfft, signal)
            elementwise = _seconds(lambda x: x * 2.0, signal)
            passed = _seconds(lambda x: x + 1.0, large)
            launch = _seconds(lambda x: x + 1.0, small)
        return Rates(
            flops={
                "matmul": 2 * a.shape[0] * a.shape[1] * b.shape[1] / product,
                "fft": 2.5 * signal.size * 11 / transform,
                "scan": signal.size / elementwise,
                "elementwise": signal.size / elementwise,
            },
            bandwidth=2 * large.size * np.dtype(dtype).itemsize / passed,
            launch=launch,
        )


def device_name() -> str:
    """Return the device on which a call traced now will run, as workloads name it: "cpu", "cuda:0", ..."""
    told = jax.config.jax_default_device  # type: ignore[attr-defined]
    if isinstance(told, jax.Device):
        return _named(told.platform, jax.local_devices(backend=told.platform).index(told))
    return _named(told or jax.default_backend(), 0)


def _named(platform: str, index: int) -> str:
    name = _NAMES.get(platform, platform)
    return name if is_host(name) else f"{name}:{index}"


def _device(name: str) -> jax.Device:
    platform, _, index = name.partition(":")
    found = jax.local_devices(backend=platform)
    if int(index or 0) >= len(found):
        raise RuntimeError(f"JaxProbe(device={name!r}): JAX has {len(found)} such devices here; pass {platform}:0.")
    return found[int(index or 0)]


def _seconds(function: Callable[..., jax.Array], *given: jax.Array) -> float:
    """Return the shortest time, in seconds, of several calls, after one that compiles the function."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*given))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*given))
        best = min(best, time.perf_counter() - start)
    return best


register_probe(JaxProbe())
