"""The canonical view of an array for kernels: [batch, channels, n, width], without a copy where possible.

A shared alpha keeps the caller's order of axes: everything before time is the batch, everything after it the width.
One alpha per channel needs the channels just before time and nothing after it; other orders are permuted into that
one. A Fourier multiplier transforms the axes that it is given, with a spacing for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.definitions import FourierMultiplier


@dataclass(frozen=True)
class Layout:
    """The canonical view of one array.

    Attributes:
        shape: The caller's shape.
        axis: The time axis of the caller's shape.
        batch: Number of independent signals that share a channel's weights.
        channels: Number of distinct columns of weights; 1 when alpha is shared.
        n: Number of samples.
        width: Number of samples that lie side by side at each time; 1 unless time is in the middle.
        order: The permutation of the caller's axes that comes before the reshaping; None if none is needed.
    """

    shape: tuple[int, ...]
    axis: int
    batch: int
    channels: int
    n: int
    width: int
    order: tuple[int, ...] | None

    @cached_property
    def canonical(self) -> tuple[int, int, int, int]:
        """The canonical shape, (batch, channels, n, width)."""
        return self.batch, self.channels, self.n, self.width

    @cached_property
    def permuted(self) -> tuple[int, ...]:
        """The caller's shape after the permutation."""
        return self.shape if self.order is None else tuple(self.shape[i] for i in self.order)

    @cached_property
    def inverse(self) -> tuple[int, ...] | None:
        """The permutation that undoes `order`; None where that is None."""
        if self.order is None:
            return None
        return tuple(self.order.index(i) for i in range(len(self.order)))


@lru_cache(maxsize=4096)
def layout_of(owner: str, shape: tuple[int, ...], axis: int, alpha_shape: tuple[int, ...]) -> Layout:
    """Return the Layout of an array of `shape` with time on `axis`; raise ValueError if alpha does not broadcast.

    Args:
        owner: The public function, for messages.
        shape: The array's shape.
        axis: Its time axis, not negative.
        alpha_shape: Alpha's shape; it must broadcast to `shape` without time.
    """
    others = [i for i in range(len(shape)) if i != axis]
    padded = (1,) * (len(others) - len(alpha_shape)) + tuple(alpha_shape)
    if len(alpha_shape) > len(others) or any(a not in (1, shape[i]) for a, i in zip(padded, others, strict=True)):
        rest = tuple(shape[i] for i in others)
        raise ValueError(
            f"{owner}(alpha of shape {tuple(alpha_shape)}, x of shape {tuple(shape)}): needs alpha to broadcast to "
            f"the axes other than time, {rest}; pass one alpha, or one per channel shaped to fit."
        )
    n = shape[axis]
    varying = [i for a, i in zip(padded, others, strict=True) if a > 1]
    if not varying:
        return Layout(shape, axis, prod(shape[:axis]), 1, n, prod(shape[axis + 1 :]), None)
    fixed = [i for i in others if i not in varying]
    order = (*fixed, *varying, axis)
    batch, channels = prod(shape[i] for i in fixed), prod(shape[i] for i in varying)
    in_place = order == tuple(range(len(shape)))
    return Layout(shape, axis, batch, channels, n, 1, None if in_place else order)


def transformed_axes(
    owner: str, shape: Sequence[int], definition: FourierMultiplier, dt: Any, dim: Any, alpha_shape: Sequence[int]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the axes that a multiplier transforms, as non-negative numbers, and the spacing along each.

    Raise unless `dim`, `dt` and alpha fit the data and the multiplier.

    Args:
        owner: The public function, for messages.
        shape: Shape of the data.
        definition: The multiplier, which limits how many axes may be transformed.
        dt: One spacing, or one for each axis.
        dim: One axis or several; None is the last, where no other could be meant.
        alpha_shape: Shape of alpha, which must broadcast to the axes that are not transformed.
    """
    if dim is None:
        check_dim(owner, shape, definition, 1 + len(alpha_shape))
        dim = -1
    most = definition.most_axes
    given = tuple(dim) if isinstance(dim, Sequence) else (dim,)
    axes = tuple([errors.axis(owner, each, len(shape)) for each in given])
    if not 1 <= len(axes) <= most or len(set(axes)) < len(axes):
        wanted = "one axis" if most == 1 else f"one to {most} different axes"
        raise ValueError(f"{owner}(dim={dim!r}): needs {wanted}; pass such as dim={-1 if most == 1 else (-2, -1)}.")
    steps = tuple(dt) if isinstance(dt, Sequence) else (dt,) * len(axes)
    if len(steps) != len(axes):
        raise ValueError(f"{owner}(dt={dt!r}): needs one spacing, or one for each of {len(axes)} axes; pass as many.")
    others = [size for axis, size in enumerate(shape) if axis not in axes]
    padded = (1,) * (len(others) - len(alpha_shape)) + tuple(alpha_shape)
    if len(padded) > len(others) or any(a not in (1, size) for a, size in zip(padded, others, strict=True)):
        raise ValueError(
            f"{owner}(alpha of shape {tuple(alpha_shape)}, x of shape {tuple(shape)}): needs alpha to broadcast to "
            f"the axes that are not transformed, {tuple(others)}; pass one alpha, or one per channel shaped to fit."
        )
    return axes, tuple([errors.positive_step(owner, step) for step in steps])


def check_dim(owner: str, shape: Sequence[int], definition: FourierMultiplier, expected: int) -> None:
    """Raise ValueError where the caller left `dim` out although several axes of the data may be meant.

    Args:
        owner: The public function, for messages.
        shape: Shape of the data.
        definition: The multiplier.
        expected: How many axes the data have if only one is transformed: that one, and those of alpha or channels.
    """
    if definition.is_of_fields and len(shape) > expected:
        most = min(definition.most_axes, len(shape))
        raise ValueError(
            f"{owner}(dim=None, x of shape {tuple(shape)}): needs dim, because {type(definition).__name__} takes one "
            f"to {most} of {len(shape)} axes; pass dim=-1 for the last alone, or such as dim=(-2, -1)."
        )
