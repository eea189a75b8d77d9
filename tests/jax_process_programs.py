"""One of two processes of JAX, with two devices each, over which a series lies.

python tests/jax_process_programs.py PORT RANK prints the largest errors of the process's part of y and of the gradient
in x, and that of alpha's gradient, relative to those of the whole series on one device.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
import jax.numpy as jnp
import numpy as np

import hpfracc_nn.jax as fjx


def loss(operator: Any) -> Any:
    def of(x: Any, alpha: Any) -> Any:
        y = operator(x, alpha)
        return (y**2).sum(), y

    return jax.jit(jax.value_and_grad(of, (0, 1), has_aux=True))


def operator(x: Any, alpha: Any, **axis: Any) -> Any:
    derivative = fjx.distributed.derivative if axis else fjx.derivative
    return derivative(x, fjx.Caputo(alpha, bounds=(0, 1)), dt=0.01, **axis)


def main(port: str, rank: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
    mesh, spec = jax.make_mesh((jax.device_count(),), ("time",)), jax.P(None, "time")
    samples = np.random.default_rng(0).normal(size=(8, 4096))
    x = jax.make_array_from_callback(samples.shape, jax.NamedSharding(mesh, spec), lambda at: samples[at])
    sliced = jax.shard_map(
        lambda x, alpha: operator(x, alpha, axis_name="time"), mesh=mesh, in_specs=(spec, jax.P()), out_specs=spec
    )
    (_, y), (gx, galpha) = loss(sliced)(x, jnp.asarray(0.6))
    (_, whole), (gwhole, wanted) = loss(operator)(jnp.asarray(samples), jnp.asarray(0.6))
    errors = []
    for found, expected in ((y, whole), (gx, gwhole)):
        expected = np.asarray(expected)
        parts = [abs(np.asarray(part.data) - expected[part.index]).max() for part in found.addressable_shards]
        errors.append(float(max(parts) / abs(expected).max()))
    errors.append(float(abs(galpha.addressable_data(0) - wanted) / abs(wanted)))
    print(json.dumps([jax.device_count(), jax.local_device_count(), errors]))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
