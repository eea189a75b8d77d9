"""Collocation for JAX: the sums over the past, the stage equations and steps, derivatives, and `fdeint` by it."""
