"""Checks of shapes, channels and edges, in every framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn import errors

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def check_features(owner: str, argument: str, shape: Sequence[int], least: int, in_features: int) -> None:
    """Raise ValueError unless a shape has at least `least` axes, the last of length `in_features`."""
    if len(shape) < least or shape[-1] != in_features:
        wanted = ", ".join([*["...", "n"][:least], str(in_features)])
        raise ValueError(
            f"{owner}({argument} of shape {tuple(shape)}): needs [{wanted}], whose last axis are the features; "
            "move them there with x.movedim, or make the layer with another in_features."
        )


def check_time_axis(owner: str, argument: str, shape: Sequence[int], dim: int) -> None:
    """Raise ValueError unless the time axis `dim` is an axis of `shape` other than the last, which holds features."""
    if errors.axis(owner, dim, len(shape)) == len(shape) - 1:
        raise ValueError(
            f"{owner}(dim={dim}): needs a time axis before the features, the last axis; "
            f"{argument} has shape {tuple(shape)}, pass dim=-2."
        )


def check_past(owner: str, found: int, wanted: int, dilation: str) -> None:
    """Raise ValueError unless a causal convolution's state has the `wanted` past samples that a result depends on."""
    if found != wanted:
        raise ValueError(
            f"{owner}(state with {found} past samples): needs {wanted} of them, "
            f"{dilation} * (kernel_size - 1); pass a state of this layer's initial_state."
        )


def check_counted(owner: str, n: int, skip: int) -> None:
    """Raise ValueError unless signals of `n` samples have some besides the first `skip`, which a mean leaves out."""
    if n <= skip:
        raise ValueError(
            f"{owner}(x of {n} samples, skip={skip}): needs more samples than are left out; "
            "pass longer signals or a smaller skip."
        )


def check_heads(owner: str, argument: str, features: int, heads: int) -> None:
    """Raise ValueError unless `heads` divides `features`: the heads of attention share the features equally."""
    if features % heads:
        raise ValueError(
            f"{owner}({argument}={features}, num_heads={heads}): needs heads of equal size; "
            f"pass an {argument} that num_heads divides."
        )


def unit_orders(owner: str, given: tuple[int, ...], argument: str, units: int) -> tuple[int, ...]:
    """Return `given`, the shape of a recurrent layer's orders; raise ValueError unless it is () or (units,)."""
    if given not in ((), (units,)):
        raise ValueError(
            f"{owner}(alpha of shape {given}): needs one order, or a flat list with one for each of "
            f"the {argument}={units} units."
        )
    return given


def image_axes(owner: str, dims: Any, axes: tuple[int, int]) -> tuple[int, ...]:
    """Return `dims`, the axes of an image to differentiate along, as a tuple.

    Args:
        owner: The layer, for messages.
        dims: The layer's argument: one or both of `axes`, in any order.
        axes: Height and width of an image as axes counted from the last.

    Raises:
        ValueError: `dims` is anything else.
    """
    found = tuple(dims) if isinstance(dims, list | tuple) else ()
    high, wide = axes
    if found not in ((wide,), (high,), (high, wide), (wide, high)):
        raise ValueError(
            f"{owner}(dims={dims!r}): needs axes of the images, counted from the last; pass ({wide},), ({high},) or "
            f"({high}, {wide})."
        )
    return found


def for_each_axis(owner: str, argument: str, given: Any, dims: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an argument as a tuple with a value for each axis in `dims`; a single value is repeated.

    Raises:
        ValueError: `given` is a sequence of another length than `dims`.
    """
    if not isinstance(given, list | tuple):
        return (given,) * len(dims)
    if len(given) != len(dims):
        raise ValueError(
            f"{owner}({argument}={given}, dims={dims}): needs one, or one for each axis; pass {len(dims)}."
        )
    return tuple(given)


def image_order_shape(owner: str, given: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return `given`, the shape of the orders of an image's axes; raise ValueError unless it is () or (len(dims),)."""
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
    """Return the arguments of a convolution over `axes` axes, checked, in torch's order, with one size for each axis.

    Raises:
        TypeError: A size is no integer.
        ValueError: A size is too small, there is not one for each axis, or `padding` is a name that is not known.
    """
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
    """Raise TypeError unless a state is of class `kind`, which the layer's `initial_state` returns."""
    if not isinstance(state, kind):
        raise TypeError(
            f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
        )


def channel_axis(ndim: int, axis: int) -> int:
    """Return the channel axis of an array with `ndim` axes whose time axis is `axis`.

    Where time is the last axis, it is 1, or 0 without a batch, else the last axis.
    """
    return min(1, ndim - 2) if axis == ndim - 1 else ndim - 1


def counted_channels(owner: str, given: tuple[int, ...], channels: int | None) -> int | None:
    """Return the number of channels that have orders of their own, None where a single order serves all.

    Args:
        owner: The layer, for messages.
        given: The shape of alpha: one that is not scalar determines the number of channels.
        channels: The layer's argument, or None.

    Raises:
        ValueError: alpha has more than one axis, or not as many values as `channels`.
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
    """Raise ValueError unless x has a channel axis beside time, with `channels` channels.

    Args:
        owner: The layer, for messages.
        channels: The layer's number of channels.
        shape: The shape of x, or of one time slice of x.
        ndim: The number of axes of x, time included.
        where: The channel axis in `shape`.
    """
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
    """Return orders, one per channel, as nested tuples with `count` more axes of length 1 after the channel axis."""
    for _ in range(count):
        alpha = tuple([(value,) if isinstance(value, float) else beside_channels(value, 1) for value in alpha])
    return alpha


def check_node_features(owner: str, shape: Sequence[int], channels: int) -> None:
    """Raise ValueError unless the shape of node features is [nodes, channels]."""
    if len(shape) != 2 or shape[1] != channels:
        raise ValueError(
            f"{owner}(x of shape {tuple(shape)}): needs [nodes, {channels}]; join the graphs of a batch "
            f"into one, or pass in_channels={shape[-1] if shape else 1}."
        )


def check_pairs(owner: str, shape: Sequence[int]) -> None:
    """Raise ValueError unless the shape of an edge index is [2, edges]."""
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"{owner}(edge_index of shape {tuple(shape)}): needs [2, edges], sources and targets; transpose "
            "pairs with edge_index.T."
        )


def check_one_for_each(owner: str, shape: Sequence[int], edges: int) -> None:
    """Raise ValueError unless the shape of edge weights is [edges]."""
    if tuple(shape) != (edges,):
        raise ValueError(
            f"{owner}(edge_weight of shape {tuple(shape)}): needs one number for each of the {edges} "
            f"edges, [{edges}]; pass edge_weight.reshape(-1) where it has an axis more."
        )


def check_nodes(owner: str, least: int, most: int, nodes: int) -> None:
    """Raise ValueError unless `least` and `most`, the smallest and largest node in the edges, are in [0, nodes)."""
    if least < 0 or most >= nodes:
        raise ValueError(
            f"{owner}(edge_index): needs nodes from 0 to {nodes - 1}, those of x; an edge names "
            f"{least if least < 0 else most}; number the nodes from 0, or pass the features of all of them."
        )


def check_channel_orders(owner: str, shape: Sequence[int], channels: int) -> None:
    """Raise ValueError unless the shape of alpha is [], or [channels] with one order for each diffusing channel."""
    if tuple(shape) not in ((), (channels,)):
        raise ValueError(
            f"{owner}(alpha of shape {tuple(shape)}): needs one order, or one for each of the "
            f"{channels} channels that diffuse; pass a float, or {channels} of them."
        )
