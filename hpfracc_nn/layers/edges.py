"""What every framework's graph layer asks of shapes and of the nodes that edges name."""

from __future__ import annotations

from collections.abc import Sequence


def check_features(owner: str, shape: Sequence[int], channels: int) -> None:
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
