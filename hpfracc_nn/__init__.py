"""Fractional calculus for neural networks: operators, layers and solvers for PyTorch and JAX."""
