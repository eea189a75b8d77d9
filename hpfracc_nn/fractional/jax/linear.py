"""The transpose of what is linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hpfracc_nn.fractional.jax.namespace import Array


def transposed(run: Callable[[Any, Array], Array]) -> Callable[[Any, Array], Array]:
    """Return the transpose of run(form, x), which is linear in x and keeps its shape."""

    def adjoint(form: Any, g: Array) -> Array:
        return jax.linear_transpose(lambda x: run(form, x), g)(g)[0]

    return adjoint
