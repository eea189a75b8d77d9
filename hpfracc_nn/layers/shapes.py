"""The shapes that layers with weights take, in every framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn import errors

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def check_features(owner: str, argument: str, shape: Sequence[int], least: int, in_features: int) -> None:
    """Raise unless a shape of `least` axes or more ends with the features."""
    if len(shape) < least or shape[-1] != in_features:
        wanted = ", ".join([*["...", "n"][:least], str(in_features)])
        raise ValueError(
            f"{owner}({argument} of shape {tuple(shape)}): needs [{wanted}], whose last axis are the features; "
            "move them there with x.movedim, or make the layer with another in_features."
        )


def image_axes(owner: str, dims: Any, axes: tuple[int, int]) -> tuple[int, ...]:
    """Return the axes of the derivatives as a tuple, or raise; `axes` are those of an image, counted from the last."""
    found = tuple(dims) if isinstance(dims, list | tuple) else ()
    high, wide = axes
    if found not in ((wide,), (high,), (high, wide), (wide, high)):
        raise ValueError(
            f"{owner}(dims={dims!r}): needs axes of the images, counted from the last; pass ({wide},), ({high},) or "
            f"({high}, {wide})."
        )
    return found


def for_each_axis(owner: str, argument: str, given: Any, dims: tuple[int, ...]) -> tuple[Any, ...]:
    """Return what was given for each axis of an image, or raise."""
    if not isinstance(given, list | tuple):
        return (given,) * len(dims)
    if len(given) != len(dims):
        raise ValueError(
            f"{owner}({argument}={given}, dims={dims}): needs one, or one for each axis; pass {len(dims)}."
        )
    return tuple(given)


def image_order_shape(owner: str, given: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an order for images' axes, which is that of what was given, or raise."""
    if given not in ((), (len(dims),)):
        raise ValueError(
            f"{owner}(alpha of shape {given}, dims={dims}): needs one order, or one for each axis; "
            f"pass a number, or {len(dims)} of them."
        )
    return given


def convolution_sizes(
    owner: str,
    in_channels: Any,
    out_channels: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    *,
    axes: int = 1,
) -> tuple[Any, ...]:
    """Return torch's arguments of a convolution over so many axes, in torch's order, or raise."""
    if isinstance(padding, str):
        errors.one_of(owner, "padding", padding, ("same", "valid", *["causal"] * (axes == 1)))
    else:
        padding = errors.counts(owner, "padding", padding, axes, 0)
    return (
        errors.count(owner, "in_channels", in_channels),
        errors.count(owner, "out_channels", out_channels),
        errors.counts(owner, "kernel_size", kernel_size, axes),
        errors.counts(owner, "stride", stride, axes),
        padding,
        errors.counts(owner, "dilation", dilation, axes),
        errors.count(owner, "groups", groups),
    )
