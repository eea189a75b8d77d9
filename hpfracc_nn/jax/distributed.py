"""Operators on series whose time axis lies over a named axis of a mesh, inside of `jax.shard_map`."""

from hpfracc_nn.distributed.jax import derivative as derivative
from hpfracc_nn.distributed.jax import integral as integral
