"""The tensors of a graph at which a gradient may stop: together they cut every way to the leaves."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

Edge = tuple[Any, int]  # a node, and which of its results


def sources(value: Tensor, wanted: Sequence[Tensor], held: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors whose gradients, passed on, are all of the gradient of `value`.

    A tensor that is wanted or held is one, and the way stops there: its own hooks and what else is asked of it go on
    from there. Where one lies behind another, what reaches it through that one is to be taken off, see
    `parameters.direct_parts`.

    Args:
        value: Has a graph, or is a leaf.
        wanted: Are reached, whether the graph of `value` reaches them or not.
        held: Are looked for.
    """
    if not value.requires_grad:
        return list({id(each): each for each in wanted}.values())
    stops = {_edge(each): each for each in (*held, *wanted)}
    reached = _reached([_edge(value), *map(_edge, wanted)], stops)
    return [stops[each] if each in stops else each[0].variable for each in reached]


def check_known(label: str, values: Iterable[Tensor], wanted: Iterable[Tensor], own: Iterable[Tensor] = ()) -> None:
    """Raise where a graph reaches a leaf of which no gradient is asked: it would be lost.

    Args:
        label: Whose graph it is, for the message.
        values: Have the graph.
        wanted: Of which gradients are asked; the way stops there.
        own: Leaves that were made for this graph.

    Raises:
        RuntimeError: It does.
    """
    edges, known = [_edge(each) for each in wanted], {id(each) for each in own}
    seen: set[Any] = {node for node, _ in edges if hasattr(node, "variable")}  # a leaf has one edge
    seen.add(None)
    stops = {edge for edge in edges if edge[0] not in seen}
    waiting: list[Edge] = [(each.grad_fn, each.output_nr) if each.grad_fn else _edge(each) for each in values]
    while waiting:  # once for every operation of a graph: what is not needed is not looked at
        edge = waiting.pop()
        node = edge[0]
        if node in seen or (stops and edge in stops):
            continue
        seen.add(node)
        if following := node.next_functions:
            waiting += following
        elif hasattr(node, "variable") and id(node.variable) not in known:
            raise RuntimeError(
                f"{label}: a tensor of shape {tuple(node.variable.shape)} requires a gradient and is not read before "
                "the first step is over, so that the adjoint does not know of it; pass it, or what is made of it, as "
                "params=[...], or pass adjoint=False."
            )


def _reached(begins: Iterable[Edge], stops: Container[Edge]) -> dict[Edge, None]:
    """Return the stops and leaves that are reached, in order, without those behind a stop."""
    found: dict[Edge, None] = {}
    seen: set[Any] = set()
    waiting = list(begins)[::-1]
    while waiting:
        edge = waiting.pop()
        node = edge[0]
        if edge in stops or hasattr(node, "variable"):
            found[edge] = None
        elif node is not None and node not in seen:
            seen.add(node)
            waiting += _following(edge)
    return found


def _following(edge: Edge) -> list[Edge]:
    return list(edge[0].next_functions)


def _edge(x: Tensor) -> Edge:
    edge = get_gradient_edge(x)
    return edge.node, edge.output_nr
