"""Layers for Flax: `functional` are their cores, `nnx` and `linen` the modules around them."""
