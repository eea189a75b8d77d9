"""Labels around arrays: tables of pandas, polars and xarray, and the times of their rows."""
