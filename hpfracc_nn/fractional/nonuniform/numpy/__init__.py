"""For NumPy arrays."""
