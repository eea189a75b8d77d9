"""How an array of any shape is seen by the kernels: [batch, channels, n, width], without a copy where possible.

A shared alpha keeps the caller's order of axes: everything before time is the batch, everything after it the width.
One alpha per channel needs the channels just before time and nothing after it; other orders are permuted into that
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from hpfracc_nn.fractional.cached import cached_property


@dataclass(frozen=True)
class Layout:
    """The canonical view of one array.

    Attributes:
        shape: The caller's shape.
        axis: The time axis of the caller's shape.
        batch: Independent signals that share a channel's weights.
        channels: Distinct columns of weights; 1 when alpha is shared.
        n: Samples.
        width: Samples that lie side by side at each time; 1 unless time is in the middle.
        order: The permutation of axes that is needed first, or None.
        alpha_shape: Shape to which alpha broadcasts before it is flattened to [channels].
    """

    shape: tuple[int, ...]
    axis: int
    batch: int
    channels: int
    n: int
    width: int
    order: tuple[int, ...] | None
    alpha_shape: tuple[int, ...]

    @cached_property
    def canonical(self) -> tuple[int, int, int, int]:
        """(batch, channels, n, width)."""
        return self.batch, self.channels, self.n, self.width

    @cached_property
    def permuted(self) -> tuple[int, ...]:
        """The caller's shape after the permutation."""
        return self.shape if self.order is None else tuple(self.shape[i] for i in self.order)

    @cached_property
    def inverse(self) -> tuple[int, ...] | None:
        """The permutation that undoes `order`."""
        if self.order is None:
            return None
        return tuple(self.order.index(i) for i in range(len(self.order)))


@lru_cache(maxsize=4096)
def layout_of(owner: str, shape: tuple[int, ...], axis: int, alpha_shape: tuple[int, ...]) -> Layout:
    """Return the canonical view of an array of `shape` with time on `axis`, or raise if alpha does not fit it.

    Args:
        owner: Who asks, for the message.
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
        return Layout(shape, axis, prod(shape[:axis]), 1, n, prod(shape[axis + 1 :]), None, ())
    fixed = [i for i in others if i not in varying]
    order = (*fixed, *varying, axis)
    batch, channels = prod(shape[i] for i in fixed), prod(shape[i] for i in varying)
    in_place = order == tuple(range(len(shape)))
    alpha_view = tuple(shape[i] for i in varying)
    return Layout(shape, axis, batch, channels, n, 1, None if in_place else order, alpha_view)
