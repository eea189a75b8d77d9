"""What an operator must be to be computed one sample at a time, in every framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.schemes.exponentials import Nodes, exponentials

HORIZON = 2**20


class Source(NamedTuple):
    """The layer that a state was made by: what it does besides the values that it learns.

    Attributes:
        owner: The class of the layer.
        definition: Its operator; where alpha is learned, at any order.
        learns: Whether alpha is learned.
        dt: Spacing of the samples.
    """

    owner: str
    definition: Definition
    learns: bool
    dt: float

    def __str__(self) -> str:
        kind, low_high = self.definition, self.definition.bounds
        alpha = "alpha learned" if self.learns else f"alpha={kind.alpha}"
        within = "" if low_high is None else f", bounds={low_high}"
        return f"{self.owner} of {type(kind).__name__}({alpha}, scheme={kind.scheme!r}{within}), dt={self.dt}"


def slice_shape(owner: str, shape: Any) -> tuple[int, ...]:
    """Return the shape of one time slice as a tuple, or raise."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"{owner}(shape={shape!r}): needs the shape of one time slice; pass x.select(dim, 0).shape.")
    return tuple(errors.count(owner, "shape", size, least=0) for size in shape)


def stream_nodes(
    owner: str, definition: Definition, shape: tuple[int, ...], alpha_shape: tuple[int, ...], dt: float, horizon: int
) -> Nodes:
    """Return the exponentials that an operator's memory is carried in, or raise where it cannot be.

    Args:
        owner: Who asks, for messages.
        definition: Which operator.
        shape: Of one time slice.
        alpha_shape: Of its alpha, which must broadcast to that.
        dt: Spacing of the samples.
        horizon: The longest series.
    """
    kind, (low, high) = type(definition).__name__, definition.interval
    if definition.side != "left":
        raise ValueError(
            f"{owner}({kind}, side={definition.side!r}): needs side='left' one sample at a time, because the "
            "others begin at the last sample; use the whole series."
        )
    if definition.subtracts and definition.taylor == 2:
        raise ValueError(
            f"{owner}({kind}, alpha within ({low:g}, {high:g})): needs alpha <= 1 one sample at a time, because above "
            "it looks ahead 3 samples at the start; use GrunwaldLetnikov, or the whole series."
        )
    layout_of(owner, (*shape, 1), len(shape), alpha_shape)  # raises where alpha does not fit
    nodes = exponentials(definition.in_steps(dt), horizon, "stream")
    if nodes is None:
        raise ValueError(
            f"{owner}({kind}, alpha within ({low:g}, {high:g})): needs weights that are a sum of decaying "
            "exponentials, the same for every alpha; keep the orders of one stream, or their bounds, between "
            "neighbouring whole numbers, or, where memory has a time scale, pass a fixed alpha or a shorter horizon."
        )
    return nodes


def check_slice(owner: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise unless the samples of one step have the state's shape."""
    if shape != wanted:
        raise ValueError(
            f"{owner}(x of shape {shape}): needs one time slice of the state's shape {wanted}; "
            "pass the samples of one step, without a time axis."
        )


def check_source(owner: str, made_by: Source | None, source: Source | None) -> None:
    """Raise unless a state is of the layer that it is given to."""
    if made_by != source:
        raise ValueError(
            f"{owner}(state of {made_by}): needs a state of this one, {source}; "
            "pass what its own initial_state returned."
        )


def check_horizon(owner: str, step: int, horizon: int) -> None:
    """Raise where a state that has seen `step` samples serves no more."""
    if step >= horizon:
        raise ValueError(
            f"{owner}(step {step + 1}): needs at most horizon={horizon} steps, for which the state was "
            "made; make it with a larger horizon."
        )
