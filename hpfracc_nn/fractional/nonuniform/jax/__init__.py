"""The operators at any times on JAX arrays."""
