"""The arguments of `SpectralFractional` in whatever framework: multiplier, axes, channels and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import MULTIPLIERS, FourierMultiplier, FractionalLaplacian

OWNER = "SpectralFractional"

Axes = tuple[int, ...]
Steps = tuple[float, ...]


def multiplier_of(definition: str | type[FourierMultiplier] | FourierMultiplier) -> FourierMultiplier:
    """Return the multiplier that a layer was given as a name, a class or a member of one, whose order means nothing.

    Raises:
        TypeError: It is none of them.
        ValueError: There is none of that name.
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


def check_numbers(alpha: Any, start: FourierMultiplier) -> None:
    """Raise unless the order that was given is a number, or numbers."""
    if not start.is_fixed:
        raise TypeError(
            f"{OWNER}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
            "pass learn_alpha=True to train it, or call the definition for an alpha that you compute."
        )


def axes_of(kind: FourierMultiplier, dim: Any, dt: float | Sequence[float]) -> tuple[Axes, Steps]:
    """Return the axes and the spacing on each, as tuples; one spacing stands for all.

    Raises:
        ValueError: The multiplier takes fewer axes, or there is not one spacing for each.
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
    """Return the shape of the orders, and how many channels they are for; None is any number.

    Raises:
        ValueError: There are orders, and not one per channel.
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
    """Raise unless the last axis that is not transformed has as many channels as the layer was made for."""
    transformed = {axis % max(1, len(shape)) for axis in axes}
    left = [size for axis, size in enumerate(shape) if axis not in transformed]
    if not left or left[-1] != channels:
        raise ValueError(
            f"{OWNER}(channels={channels}, x of shape {tuple(shape)}): needs {channels} channels on the "
            f"last axis that is not in dim={axes}; make the layer with the number that x has."
        )


def multiplier_bounds(bounds: Any) -> tuple[float, float]:
    """Return where a learned order stays: (0, 2) where nothing is said.

    Raises:
        TypeError: They are no pair of numbers.
        ValueError: They are no interval.
    """
    if bounds is None:
        return 0.0, 2.0
    low, high = errors.pair(OWNER, "bounds", bounds, "(0, 2)")
    if not low < high:
        raise ValueError(f"{OWNER}(bounds={bounds!r}): needs low < high; pass a pair such as (0, 2).")
    return low, high


def options_text(definition: FourierMultiplier) -> str:
    """Return a multiplier's name and options as a layer shows them."""
    kind = type(definition)
    known = next((name for name, each in MULTIPLIERS.items() if kind is each), None)
    name = kind.__name__ if known is None else repr(known)
    options = (field.name for field in fields(definition) if field.name != "alpha")
    return f"definition={name}" + "".join(f", {option}={getattr(definition, option)!r}" for option in options)
