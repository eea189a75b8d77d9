"""The kernels of the Flax layers' own operations, one file each; importing this package registers them."""

from hpfracc_nn.layers.flax.kernels import attention_blocks, attention_dense

__all__ = ["attention_blocks", "attention_dense"]
