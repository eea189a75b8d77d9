"""The parts of power-law attention in JAX that its core, in `layers.flax.functional.attention`, and its kernels share."""
