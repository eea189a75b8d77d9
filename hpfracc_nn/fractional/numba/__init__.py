"""The compiled core: the whole operator in one pass over the data, by Numba."""
