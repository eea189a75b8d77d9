"""Which axis the channels are, and whether there is one order for each of them, in every framework."""

from __future__ import annotations

from collections.abc import Sequence


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
