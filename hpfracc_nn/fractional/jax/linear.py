"""What is done with a kernel's `run`, which is linear in the data: its transpose, and the data a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.fractional.jax.sizes import fits

Run = Callable[[Any, Array], Array]


def transposed(run: Run) -> Run:
    """Return the transpose of run(form, x), which is linear in x and keeps its shape."""

    def adjoint(form: Any, g: Array) -> Array:
        return jax.linear_transpose(lambda x: run(form, x), g)(g)[0]

    return adjoint


def in_parts(run: Run, form: Any, x: Array, chunk: int | None) -> Array:
    """Return run(form, x) of x [batch, channels, ...], of at most `chunk` rows at a time where memory is short."""
    count = None if chunk is None else max(1, chunk // x.shape[1])
    if count is None or fits(count, x.shape[0]):
        return run(form, x)
    return jax.lax.map(lambda row: run(form, row[None])[0], x, batch_size=count)  # type: ignore[no-any-return]
