"""Which axes a multiplier transforms, how far apart their samples are, and which are left for alpha."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Multiplier


def transformed_axes(
    owner: str, shape: Sequence[int], definition: Multiplier, dt: Any, dim: Any, alpha_shape: Sequence[int]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the axes, not negative, and the spacing on each; or raise.

    Args:
        owner: Who asks, for messages.
        shape: Of the data.
        definition: The operator, which takes so many axes at most.
        dt: One spacing, or one for each axis.
        dim: One axis or several; None is the last, where no other could be meant.
        alpha_shape: Of alpha, which must broadcast to the axes that are left.
    """
    if dim is None:
        check_told(owner, shape, definition, 1 + len(alpha_shape))
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


def check_told(owner: str, shape: Sequence[int], definition: Multiplier, told: int) -> None:
    """Raise where no axes were given and any of those of a field may be meant.

    Args:
        owner: Who asks, for messages.
        shape: Of the field.
        definition: The operator.
        told: How many axes are spoken for: one that is transformed, and those of alpha or channels.
    """
    if definition.is_of_fields and len(shape) > told:
        most = min(definition.most_axes, len(shape))
        raise ValueError(
            f"{owner}(dim=None, x of shape {tuple(shape)}): needs dim, because {type(definition).__name__} takes one "
            f"to {most} of {len(shape)} axes; pass dim=-1 for the last alone, or such as dim=(-2, -1)."
        )
