"""The parts of power-law attention that its core, in `layers.flax.functional.attention`, and its kernels share."""
