"""Checks of shapes, channels and edges, in every framework."""

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


def check_time_axis(owner: str, argument: str, shape: Sequence[int], dim: int) -> None:
    """Raise unless time is an axis of an input other than the last, which are the features."""
    if errors.axis(owner, dim, len(shape)) == len(shape) - 1:
        raise ValueError(
            f"{owner}(dim={dim}): needs a time axis before the features, the last axis; "
            f"{argument} has shape {tuple(shape)}, pass dim=-2."
        )


def check_past(owner: str, found: int, wanted: int, dilation: str) -> None:
    """Raise unless the state of a causal convolution has as many past samples as a result depends on."""
    if found != wanted:
        raise ValueError(
            f"{owner}(state with {found} past samples): needs {wanted} of them, "
            f"{dilation} * (kernel_size - 1); pass a state of this layer's initial_state."
        )


def check_counted(owner: str, n: int, skip: int) -> None:
    """Raise unless signals have samples besides those that are left out of a mean."""
    if n <= skip:
        raise ValueError(
            f"{owner}(x of {n} samples, skip={skip}): needs more samples than are left out; "
            "pass longer signals or a smaller skip."
        )


def check_heads(owner: str, argument: str, features: int, heads: int) -> None:
    """Raise unless the features of attention are those of heads of equal size."""
    if features % heads:
        raise ValueError(
            f"{owner}({argument}={features}, num_heads={heads}): needs heads of equal size; "
            f"pass an {argument} that num_heads divides."
        )


def unit_orders(owner: str, given: tuple[int, ...], argument: str, units: int) -> tuple[int, ...]:
    """Return the shape of a recurrent layer's orders, or raise unless there is one, or one for each of its units."""
    if given not in ((), (units,)):
        raise ValueError(
            f"{owner}(alpha of shape {given}): needs one order, or a flat list with one for each of "
            f"the {argument}={units} units."
        )
    return given


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


def check_is_state(owner: str, state: Any, kind: type) -> None:
    """Raise unless a state is of the class that a layer's `initial_state` returns."""
    if not isinstance(state, kind):
        raise TypeError(
            f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
        )


def channel_axis(ndim: int, axis: int) -> int:
    """Return the channel axis: 1 when time, which is `axis`, is last (0 without a batch), else the last."""
    return min(1, ndim - 2) if axis == ndim - 1 else ndim - 1


def counted_channels(owner: str, given: tuple[int, ...], channels: int | None) -> int | None:
    """Return how many channels there are for an alpha of shape `given`, None where it is one order; or raise.

    One that is not scalar says so itself.
    """
    if len(given) > 1:
        raise ValueError(f"{owner}(alpha of shape {given}): needs one order per channel; pass a flat list of floats.")
    counted = (given[0] if given else None) if channels is None else channels
    if given and given[0] != counted:
        raise ValueError(
            f"{owner}(alpha of {given[0]} values, channels={channels}): needs one order per "
            f"channel; pass channels={given[0]}."
        )
    return counted


def check_channels(owner: str, channels: int, shape: Sequence[int], ndim: int, where: int) -> None:
    """Raise unless the shape of x, which has `ndim` axes, or of its time slice has the channels on axis `where`."""
    if ndim < 2:
        raise ValueError(
            f"{owner}(channels={channels}): needs a channel axis beside time; "
            f"x has shape {tuple(shape)}, add one with x[None]."
        )
    if shape[where] != channels:
        raise ValueError(
            f"{owner}(channels={channels}): needs {channels} channels on axis {where}; "
            f"x has shape {tuple(shape)}, pass channels={shape[where]}."
        )


def beside_channels(alpha: tuple, count: int) -> tuple:
    """Return one order per channel with `count` axes of length one after the channels'."""
    for _ in range(count):
        alpha = tuple([(value,) if isinstance(value, float) else beside_channels(value, 1) for value in alpha])
    return alpha


def check_node_features(owner: str, shape: Sequence[int], channels: int) -> None:
    """Raise unless features are [nodes, channels]."""
    if len(shape) != 2 or shape[1] != channels:
        raise ValueError(
            f"{owner}(x of shape {tuple(shape)}): needs [nodes, {channels}]; join the graphs of a batch "
            f"into one, or pass in_channels={shape[-1] if shape else 1}."
        )


def check_pairs(owner: str, shape: Sequence[int]) -> None:
    """Raise unless edges are [2, edges]."""
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"{owner}(edge_index of shape {tuple(shape)}): needs [2, edges], sources and targets; transpose "
            "pairs with edge_index.T."
        )


def check_one_for_each(owner: str, shape: Sequence[int], edges: int) -> None:
    """Raise unless there is one weight for each edge."""
    if tuple(shape) != (edges,):
        raise ValueError(
            f"{owner}(edge_weight of shape {tuple(shape)}): needs one number for each of the {edges} "
            f"edges, [{edges}]; pass edge_weight.reshape(-1) where it has an axis more."
        )


def check_nodes(owner: str, least: int, most: int, nodes: int) -> None:
    """Raise unless the least and the largest node that edges name are there."""
    if least < 0 or most >= nodes:
        raise ValueError(
            f"{owner}(edge_index): needs nodes from 0 to {nodes - 1}, those of x; an edge names "
            f"{least if least < 0 else most}; number the nodes from 0, or pass the features of all of them."
        )


def check_channel_orders(owner: str, shape: Sequence[int], channels: int) -> None:
    """Raise unless there is one order, or one for each of the channels that diffuse."""
    if tuple(shape) not in ((), (channels,)):
        raise ValueError(
            f"{owner}(alpha of shape {tuple(shape)}): needs one order, or one for each of the "
            f"{channels} channels that diffuse; pass a float, or {channels} of them."
        )
