"""optax's optimizers along a power-law average of the last gradients; with alpha = 1 they are those optimizers.

Each takes the arguments of the optimizer of optax that it is made of, in its order, then its own by name. Arguments are
spelled out, so that `optax.inject_hyperparams` finds those that are numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.training.jax.optimizers.fractional import scale_by_fractional
from hpfracc_nn.training.jax.optimizers.orders import Alpha

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

    With momentum the average is what enters the velocity: it is one kernel of past gradients after another.

    Args:
        learning_rate: As of `optax.sgd`, as are the three that follow.
        momentum: None is none.
        nesterov: Whether momentum is Nesterov's.
        accumulator_dtype: Of the velocity.
        alpha: As of `scale_by_fractional`, whose errors and source it has.
        memory: As of `scale_by_fractional`.
        kind: As of `scale_by_fractional`.
        weight_decay: This times the parameters is added to the average; it is not averaged.
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
        mu_dtype: Of the first moment.
        nesterov: Whether momentum is Nesterov's.
        alpha: As of `scale_by_fractional`, whose errors and source it has.
        memory: As of `scale_by_fractional`.
        kind: As of `scale_by_fractional`.
        weight_decay: This times the parameters is added to the average, as in `torch.optim.Adam`. For that of AdamW
            take `fractional_adamw`.
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
        mu_dtype: Of the first moment.
        weight_decay: What of the parameters is taken away at each step, in units of the learning rate.
        mask: Which of them decay. A function is one for `optax.inject_hyperparams(..., static_args="mask")`.
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

    That of `FractionalRMSprop`, and of torch, is `decay=0.99, eps_in_sqrt=False`.

    Args:
        learning_rate: As of `optax.rmsprop`, as are the eight that follow.
        decay: Of the mean of squares: what `FractionalRMSprop` calls `smoothing`.
        eps: Added to the mean of squares, or to its root.
        initial_scale: First mean of squares.
        eps_in_sqrt: Whether eps is added under the root.
        centered: Whether the variance takes the place of the mean of squares.
        momentum: None is none.
        nesterov: Whether momentum is Nesterov's.
        bias_correction: Whether the means are divided by the sums of their weights.
        alpha: As of `scale_by_fractional`, whose errors and source it has.
        memory: As of `scale_by_fractional`.
        kind: As of `scale_by_fractional`.
        weight_decay: This times the parameters is added to the average; it is not averaged.
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
    """Return what adds to the updates; the state is the same whether it does."""
    if isinstance(weight_decay, int | float) and weight_decay == 0:
        return optax.identity()
    return optax.add_decayed_weights(weight_decay)
