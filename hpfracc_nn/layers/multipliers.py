"""The arguments of `SpectralFractional` in whatever framework: multiplier, axes, channels and bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import MULTIPLIERS, FourierMultiplier, FractionalLaplacian
from hpfracc_nn.layers.order import AnOrder, Bounds, Shape, interval

OWNER = "SpectralFractional"

Axes = tuple[int, ...]
Steps = tuple[float, ...]


def multiplier_of(definition: str | type[FourierMultiplier] | FourierMultiplier) -> FourierMultiplier:
    """Return the layer's argument `definition` as a FourierMultiplier; a name or a class gets alpha = 1, a placeholder.

    Raises:
        TypeError: `definition` is neither a name nor a multiplier nor a class of multipliers.
        ValueError: The name is not known.
    """
    if isinstance(definition, FourierMultiplier):
        return definition
    if isinstance(definition, type) and issubclass(definition, FourierMultiplier):
        return definition(1.0)
    if not isinstance(definition, str):
        raise TypeError(
            f"{OWNER}(definition={definition!r}): needs a name, a multiplier or the class of one; pass for example "
            f"{FractionalLaplacian.__name__}."
        )
    return MULTIPLIERS[errors.one_of(OWNER, "definition", definition, MULTIPLIERS)](1.0)


def begun(
    definition: str | type[FourierMultiplier] | FourierMultiplier,
    alpha: Any,
    kind: type[AnOrder],
    make: Callable[[Any, Bounds, Shape], AnOrder],
    *,
    bounds: Any,
    learn_alpha: bool,
    channels: int | None,
) -> tuple[FourierMultiplier, AnOrder | None, int | None]:
    """Return the layer's multiplier, its learned order (None: fixed) and its number of channels (None: any).

    With a learned order the multiplier's own alpha is a placeholder.

    Args:
        definition: The layer's argument, see `multiplier_of`.
        alpha: The layer's argument: a number, numbers, or an order, which then is the layer's own.
        kind: The framework's class of learned orders, `Alpha`.
        make: Makes a learned order from first values, bounds and a shape.
        bounds: The layer's argument; None is (0, 2) for numbers to be learned.
        learn_alpha: Whether numbers are to be learned.
        channels: The layer's argument.

    Raises:
        TypeError: `definition` is no multiplier, or alpha is an array of the framework.
        ValueError: The name of the multiplier is not known, or alpha, bounds or channels are out of range.
    """
    start = multiplier_of(definition)
    if isinstance(alpha, kind):
        if channels is None and len(alpha.shape) == 1:
            (channels,) = alpha.shape
        alpha.bounds_for(OWNER, bounds, (channels or 1,) if alpha.shape else ())
        order: AnOrder | None = alpha
    else:
        start = replace(start, alpha=alpha)
        if not start.is_fixed:
            raise TypeError(
                f"{OWNER}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
                "pass learn_alpha=True to train it, or call the definition for an alpha that you compute."
            )
        shape, channels = channel_orders(start.alpha, channels)
        within = (0.0, 2.0) if bounds is None else bounds
        order = make(start.alpha, interval(OWNER, within, "(0, 2)"), shape) if learn_alpha else None
    for end in () if order is None else order.bounds:
        start.check(end)
    return start, order, channels


def axes_of(kind: FourierMultiplier, dim: Any, dt: float | Sequence[float]) -> tuple[Axes, Steps]:
    """Return the axes to transform, and their spacings, as tuples; a single spacing stands for all axes.

    Raises:
        ValueError: There are more axes than the multiplier takes, or not one spacing for each.
        TypeError: A spacing is no number.
    """
    axes = tuple(dim) if isinstance(dim, Sequence) else (dim,)
    steps = tuple(errors.positive_step(OWNER, step) for step in (dt if isinstance(dt, Sequence) else (dt,)))
    if not 1 <= len(axes) <= kind.most_axes or len(steps) not in (1, len(axes)):
        raise ValueError(
            f"{OWNER}(dim={axes}, dt={steps}): needs one to {kind.most_axes} axes for "
            f"{type(kind).__name__}, and one spacing or one for each; pass such as dim=-1, dt=0.1."
        )
    return axes, steps


def channel_orders(alpha: float | tuple, channels: int | None) -> tuple[tuple[int, ...], int | None]:
    """Return the shape of the orders, () or (channels,), and the number of channels; None is any number.

    Raises:
        ValueError: alpha is several orders, but not one per channel.
    """
    if isinstance(alpha, float):
        return () if channels is None else (channels,), channels
    count = len(alpha) if channels is None else channels
    if len(alpha) != count or any(isinstance(value, tuple) for value in alpha):
        raise ValueError(
            f"{OWNER}(alpha={alpha}, channels={count}): needs one order per channel; "
            "pass a flat list of as many floats."
        )
    return (count,), count


def check_channels(shape: Sequence[int], axes: Axes, channels: int) -> None:
    """Raise ValueError unless the last axis of `shape` outside `axes`, the transformed axes, has length `channels`."""
    transformed = {axis % max(1, len(shape)) for axis in axes}
    left = [size for axis, size in enumerate(shape) if axis not in transformed]
    if not left or left[-1] != channels:
        raise ValueError(
            f"{OWNER}(channels={channels}, x of shape {tuple(shape)}): needs {channels} channels on the "
            f"last axis that is not in dim={axes}; make the layer with the number that x has."
        )


def options_text(definition: FourierMultiplier) -> str:
    """Return a multiplier's name and options as text for the layer's repr."""
    kind = type(definition)
    known = next((name for name, each in MULTIPLIERS.items() if kind is each), None)
    name = kind.__name__ if known is None else repr(known)
    options = (field.name for field in fields(definition) if field.name != "alpha")
    return f"definition={name}" + "".join(f", {option}={getattr(definition, option)!r}" for option in options)
