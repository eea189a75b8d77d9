"""Updates become power-law averages of the last ones: a transformation to stand before any of optax's optimizers."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import jax
import numpy as np
import optax

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.training.fractional_options import (
    cannot_fade,
    check_kind,
    check_memory,
    keeps_no_gradients,
)
from hpfracc_nn.training.jax.optimizers import averages, caputo, orders
from hpfracc_nn.training.jax.optimizers.orders import Alpha
from hpfracc_nn.training.power_law import LAWS

_BY_THE_WAY = {"caputo": caputo.closed_form, "caputo_terminal": caputo.fixed_terminal}
KINDS = (*LAWS, *_BY_THE_WAY)


def scale_by_fractional(
    alpha: Alpha,
    memory: int | str = 10,
    kind: str = "integral",
    *,
    key: Array | int = 0,
    history_dtype: Any = None,
) -> optax.GradientTransformation:
    """Replace updates with a power-law average of the last ones; with alpha = 1 they stay what they are.

    What comes after it in an `optax.chain` takes the average for the gradient: any optimizer of optax becomes
    fractional. The state has two counts, and trees like the parameters: one with an axis of `memory` gradients before
    each parameter's own, or four moving averages. Where the order is a Python number, 1, nothing is kept. An array or a
    schedule keeps the history, and drops it at a step where it is 1.

    Args:
        alpha: Order in (0, 1]: the weights of past gradients fall like lag**-alpha; 1 keeps none of them, towards 0 all
            count alike. A number; an array [], which may be traced, as that of `optax.inject_hyperparams`; or a
            function of the number of steps taken.
        memory: How many gradients are averaged, that of the step included, or "exponentials", which keeps four moving
            averages and weighs like the power law times exp(-lag / 50). The kinds "caputo" and "caputo_terminal" leave
            it unused.
        kind: "integral": weights of the fractional integral of order 1 - alpha, divided by their sum. "difference": of
            the derivative of order 1 - alpha. "fcgd", "caputo", "caputo_terminal": as in papers, to reproduce them.
            Both of Caputo need the parameters in `update`, and "caputo_terminal" `value_fn` too, the loss of
            parameters: it takes the gradient at eight points, makes no use of the updates, and stands first.
        key: A key or seed: where the random numbers of "fcgd" begin. They follow from it and the number of gradients
            remembered.
        history_dtype: Of the gradients kept; None is that of the parameters, and for exponentials float32 or better.

    Returns:
        A transformation. Its updates have the shapes and dtypes of those that it is given.

    Raises:
        ValueError: alpha is not in (0, 1], memory is less than 1, or a kind is unknown or does not go with the memory.
        TypeError: alpha is not a number, or memory neither a whole number nor "exponentials".

    Source: the weights in `hpfracc_nn/training/power_law.py`, Caputo's derivatives in `caputo.py` beside it.

    Examples:
        >>> average = scale_by_fractional(0.5)
        >>> _, state = average.update(jnp.ones(1), average.init(jnp.zeros(1)))
        >>> average.update(jnp.zeros(1), state)[0].round(4)  # (0 + 1 / 2) / (1 + 1 / 2)
        Array([0.3333], dtype=float32)
        >>> optimizer = optax.chain(scale_by_fractional(0.9), optax.lion(1e-4))
    """
    orders.check(alpha)
    check_kind(kind, KINDS)
    length = _length(memory)
    if kind not in LAWS:
        if isinstance(length, str):
            raise ValueError(keeps_no_gradients(kind))
        return optax.identity() if orders.is_identity(alpha) else _BY_THE_WAY[kind](alpha)
    law = LAWS[kind]
    if isinstance(length, str) and not law.fades:
        raise ValueError(cannot_fade(kind))
    if orders.is_identity(alpha) or (isinstance(memory, Integral) and memory == 1):
        return optax.identity()
    if isinstance(length, str):
        return averages.fading(alpha, history_dtype)
    return averages.window(alpha, law, length, key, history_dtype)


def _length(memory: Any) -> int | str | None:
    """Return the memory as a number, "exponentials", or None where it is traced, as by inject_hyperparams."""
    if isinstance(memory, jax.core.Tracer):
        return None
    if isinstance(memory, jax.Array | np.ndarray) and memory.ndim == 0:
        memory = memory.item()
    check_memory(memory)
    return memory if isinstance(memory, str) else int(memory)
