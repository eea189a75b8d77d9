"""optax's optimizers along a power-law average of the last gradients; with alpha = 1 they are optax's optimizers.

Each takes the arguments of the optax optimizer that it is made of, in the same order, then its own by name. Arguments
are spelled out, so that `optax.inject_hyperparams` finds those that are numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import jax
import numpy as np
import optax

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.training.directions import LAWS, cannot_fade, check_kind, check_memory, keeps_no_gradients
from hpfracc_nn.training.jax.optimizers.transformations import (
    Alpha,
    check,
    closed_form,
    fading,
    fixed_terminal,
    is_identity,
    window,
)

_BY_THE_WAY = {"caputo": closed_form, "caputo_terminal": fixed_terminal}
KINDS = (*LAWS, *_BY_THE_WAY)


def scale_by_fractional(
    alpha: Alpha,
    memory: int | str = 10,
    kind: str = "integral",
    *,
    key: Array | int = 0,
    history_dtype: Any = None,
) -> optax.GradientTransformation:
    """Return a transformation that replaces updates with a power-law average of the last ones.

    With alpha = 1 updates stay as they are. A transformation that comes after this one in an `optax.chain` takes the
    average for the gradient: any optimizer of optax becomes fractional. The state has two counts, and trees like the
    parameters: one with an axis of `memory` gradients before each parameter's own, or four moving averages. If alpha is
    the Python number 1, nothing is kept. With an array or a schedule the history is kept, and dropped at a step where
    alpha is 1.

    Args:
        alpha: Order in (0, 1]: the weights of past gradients fall like lag**-alpha; 1 keeps none of them, towards 0 all
            count alike. A number; an array [], which may be traced, as that of `optax.inject_hyperparams`; or a
            function of the number of steps taken.
        memory: How many gradients are averaged, that of the step included, or "exponentials", which keeps four moving
            averages and weighs like the power law times exp(-lag / 50). The kinds "caputo" and "caputo_terminal" leave
            it unused.
        kind: "integral": weights of the fractional integral of order 1 - alpha, divided by their sum. "difference": of
            the derivative of order 1 - alpha. "fcgd", "caputo", "caputo_terminal": as in papers, to reproduce them.
            Both of Caputo need the parameters in `update`, and "caputo_terminal" `value_fn` too, the loss as a function
            of the parameters: this kind takes the gradient at eight points, makes no use of the updates, and comes
            first in a chain.
        key: The key or seed of the random numbers of "fcgd", which follow from it and the number of gradients stored.
        history_dtype: The dtype of the gradients that are kept; None is that of the parameters, and for exponentials
            float32 or better.

    Returns:
        The transformation. It leaves the shapes and dtypes of updates as they are.

    Raises:
        ValueError: alpha is not in (0, 1], memory is less than 1, or a kind is unknown or does not go with the memory.
        TypeError: alpha is not a number, or memory neither a whole number nor "exponentials".

    Source: those of the weights and of Caputo's derivatives in `hpfracc_nn/training/directions.py`.

    Examples:
        >>> average = scale_by_fractional(0.5)
        >>> _, state = average.update(jnp.ones(1), average.init(jnp.zeros(1)))
        >>> average.update(jnp.zeros(1), state)[0].round(4)  # (0 + 1 / 2) / (1 + 1 / 2)
        Array([0.3333], dtype=float32)
        >>> optimizer = optax.chain(scale_by_fractional(0.9), optax.lion(1e-4))
    """
    check(alpha)
    check_kind(kind, KINDS)
    length = _length(memory)
    if kind not in LAWS:
        if isinstance(length, str):
            raise ValueError(keeps_no_gradients(kind))
        return optax.identity() if is_identity(alpha) else _BY_THE_WAY[kind](alpha)
    law = LAWS[kind]
    if isinstance(length, str) and not law.fades:
        raise ValueError(cannot_fade(kind))
    if is_identity(alpha) or (isinstance(memory, Integral) and memory == 1):
        return optax.identity()
    if isinstance(length, str):
        return fading(alpha, history_dtype)
    return window(alpha, law, length, key, history_dtype)


def _length(memory: Any) -> int | str | None:
    """Return the option `memory` as an int or "exponentials"; None if it is traced, as by `inject_hyperparams`."""
    if isinstance(memory, jax.core.Tracer):
        return None
    if isinstance(memory, jax.Array | np.ndarray) and memory.ndim == 0:
        memory = memory.item()
    check_memory(memory)
    return memory if isinstance(memory, str) else int(memory)


Number = float | Array
Rate = Number | Callable[[Array], Any]


def fractional_sgd(
    learning_rate: Rate,
    momentum: Number | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
    *,
    alpha: Alpha = 1.0,
    memory: int | str = 10,
    kind: str = "integral",
    weight_decay: Number = 0.0,
    key: Array | int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Return `optax.sgd` along a power-law average of the last gradients.

    With momentum the average enters the velocity: past gradients are weighted twice, by the power law and by momentum.

    Args:
        learning_rate: As of `optax.sgd`, as are the three that follow.
        momentum: The decay of the velocity; None is no momentum.
        nesterov: Whether momentum is Nesterov's.
        accumulator_dtype: The dtype of the velocity.
        alpha: As of `scale_by_fractional`, whose errors and source it has.
        memory: As of `scale_by_fractional`.
        kind: As of `scale_by_fractional`.
        weight_decay: The factor by which parameters are added to the average; this term is not averaged.
        key: As of `scale_by_fractional`.

    Examples:
        >>> optimizer = fractional_sgd(0.1, momentum=0.9, alpha=0.9)
        >>> state = optimizer.init(jnp.zeros(1))
        >>> updates, state = optimizer.update(jnp.ones(1), state, jnp.zeros(1))
        >>> updates.round(4)  # a first step averages one gradient
        Array([-0.1], dtype=float32)
    """
    base = optax.sgd(learning_rate, momentum, nesterov, accumulator_dtype)
    return optax.chain(scale_by_fractional(alpha, memory, kind, key=key), _decayed(weight_decay), base)


def fractional_adam(
    learning_rate: Rate,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    alpha: Alpha = 1.0,
    memory: int | str = 10,
    kind: str = "integral",
    weight_decay: Number = 0.0,
    key: Array | int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Return `optax.adam` along a power-law average of the last gradients; both moments are those of the average.

    Args:
        learning_rate: As of `optax.adam`, as are the six that follow.
        b1: Decay of the first moment; 0 puts the average in its place.
        b2: Decay of the second moment.
        eps: Added to the root of the second moment.
        eps_root: Added under the root.
        mu_dtype: The dtype of the first moment.
        nesterov: Whether momentum is Nesterov's.
        alpha: As of `scale_by_fractional`, whose errors and source it has.
        memory: As of `scale_by_fractional`.
        kind: As of `scale_by_fractional`.
        weight_decay: The factor by which parameters are added to the average, as in `torch.optim.Adam`. For the decay
            of AdamW take `fractional_adamw`.
        key: As of `scale_by_fractional`.

    Examples:
        >>> optimizer = fractional_adam(1e-3, alpha=0.9)
        >>> state = optimizer.init(jnp.zeros(1))
        >>> updates, state = optimizer.update(jnp.ones(1), state, jnp.zeros(1))
        >>> updates.round(4)  # a first step averages one gradient
        Array([-0.001], dtype=float32)
    """
    base = optax.adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return optax.chain(scale_by_fractional(alpha, memory, kind, key=key), _decayed(weight_decay), base)


def fractional_adamw(
    learning_rate: Rate,
    b1: Number = 0.9,
    b2: Number = 0.999,
    eps: Number = 1e-8,
    eps_root: Number = 0.0,
    mu_dtype: Any = None,
    weight_decay: Number = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
    alpha: Alpha = 1.0,
    memory: int | str = 10,
    kind: str = "integral",
    key: Array | int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Return `optax.adamw` along a power-law average of the last gradients; what decays is not averaged.

    Args:
        learning_rate: As of `optax.adamw`, as are the eight that follow.
        b1: Decay of the first moment; 0 puts the average in its place.
        b2: Decay of the second moment.
        eps: Added to the root of the second moment.
        eps_root: Added under the root.
        mu_dtype: The dtype of the first moment.
        weight_decay: The part of the parameters that is subtracted at each step, in units of the learning rate.
        mask: Which parameters decay, as of `optax.adamw`. With `optax.inject_hyperparams` a function needs
            static_args="mask".
        nesterov: Whether momentum is Nesterov's.
        alpha: As of `scale_by_fractional`, whose errors and source it has.
        memory: As of `scale_by_fractional`.
        kind: As of `scale_by_fractional`.
        key: As of `scale_by_fractional`.

    Examples:
        >>> optimizer = fractional_adamw(1e-3, alpha=0.9, memory="exponentials")
        >>> state = optimizer.init(jnp.zeros(1))
        >>> updates, state = optimizer.update(jnp.ones(1), state, jnp.zeros(1))
        >>> updates.round(4)  # a first step averages one gradient
        Array([-0.001], dtype=float32)
    """
    base = optax.adamw(learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=nesterov)
    return optax.chain(scale_by_fractional(alpha, memory, kind, key=key), base)


def fractional_rmsprop(
    learning_rate: Rate,
    decay: Number = 0.9,
    eps: Number = 1e-8,
    initial_scale: Number = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Number | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
    *,
    alpha: Alpha = 1.0,
    memory: int | str = 10,
    kind: str = "integral",
    weight_decay: Number = 0.0,
    key: Array | int = 0,
) -> optax.GradientTransformationExtraArgs:
    """Return `optax.rmsprop` along a power-law average of the last gradients.

    With `decay=0.99, eps_in_sqrt=False` it is the RMSprop of torch and of `FractionalRMSprop`.

    Args:
        learning_rate: As of `optax.rmsprop`, as are the eight that follow.
        decay: The decay of the mean of squares, called `smoothing` in `FractionalRMSprop`.
        eps: Added to the mean of squares, or to its root.
        initial_scale: First mean of squares.
        eps_in_sqrt: Whether eps is added under the root.
        centered: Whether the variance takes the place of the mean of squares.
        momentum: The decay of the velocity; None is no momentum.
        nesterov: Whether momentum is Nesterov's.
        bias_correction: Whether the means are divided by the sums of their weights.
        alpha: As of `scale_by_fractional`, whose errors and source it has.
        memory: As of `scale_by_fractional`.
        kind: As of `scale_by_fractional`.
        weight_decay: The factor by which parameters are added to the average; this term is not averaged.
        key: As of `scale_by_fractional`.

    Examples:
        >>> optimizer = fractional_rmsprop(1e-2, alpha=0.9)
        >>> state = optimizer.init(jnp.zeros(1))
        >>> updates, state = optimizer.update(jnp.ones(1), state, jnp.zeros(1))
        >>> updates.round(4)  # a first step averages one gradient
        Array([-0.0316], dtype=float32)
    """
    base = optax.rmsprop(
        learning_rate, decay, eps, initial_scale, eps_in_sqrt, centered, momentum, nesterov, bias_correction
    )
    return optax.chain(scale_by_fractional(alpha, memory, kind, key=key), _decayed(weight_decay), base)


def _decayed(weight_decay: Number) -> optax.GradientTransformation:
    """Return the transformation that adds `weight_decay * params` to the updates.

    Without decay the transformation does nothing; its state has the same structure in both cases.
    """
    if isinstance(weight_decay, int | float) and weight_decay == 0:
        return optax.identity()
    return optax.add_decayed_weights(weight_decay)
