"""Operators on series whose time axis is divided over a named axis of a mesh, for use inside of `jax.shard_map`."""

from hpfracc_nn.distributed.jax import derivative as derivative
from hpfracc_nn.distributed.jax import integral as integral
