"""Attention part by part: some items of the batch, queries and keys at a time, put together or added up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from hpfracc_nn.layers.torch.attention_formula import Given, along

Place = tuple[slice, slice, slice]  # items of the batch, queries, keys
Averages = tuple[Tensor, Tensor | None]
Gradients = list[Tensor | None]


def items(given: Given, rows: int | None) -> Iterator[Place]:
    """Yield as many items of the batch at a time as have `rows` heads together, at least one; None: all."""
    batch, heads, queries, _ = given.q.shape
    count = batch if rows is None else max(1, rows // heads)
    for begin in range(0, batch, count):
        yield slice(begin, begin + count), slice(0, queries), slice(0, given.k.shape[2])


def averaged(
    places: Iterable[Place], given: Given, needs_weights: bool, run: Callable[[Given, int], Averages]
) -> Averages:
    """Return averages and weights of all queries; `run` gets a part and the number of its first query."""
    shape = given.q.shape
    y = given.v.new_empty(*shape[:3], given.v.shape[-1])
    weights = given.v.new_zeros(*shape[:3], given.k.shape[2]) if needs_weights else None
    for some, queries, keys in places:
        y[some, :, queries], found = run(given.part(some, queries, keys), queries.start)
        if weights is not None and found is not None:
            weights[some, :, queries, keys] = found
    return y, weights


def pulled(
    places: Iterable[Place],
    given: Given,
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
    run: Callable[[Given, Sequence[Tensor | None], int], Gradients],
) -> Gradients:
    """Return the sums of the gradients that `run` finds from a part, its results' gradients and its first query."""
    total = [
        torch.zeros_like(tensor) if wants and tensor is not None else None
        for tensor, wants in zip(given[:5], wanted, strict=True)
    ]
    gy, gweights = grads
    for some, queries, keys in places:
        mine = (
            None if gy is None else gy[some, :, queries],
            None if gweights is None else gweights[some, :, queries, keys],
        )
        found = run(given.part(some, queries, keys), mine, queries.start)
        for whole, part, place in zip(total, found, _where(given, some, queries, keys), strict=True):
            if whole is not None and part is not None:
                whole[place] += part
    return total


def _where(given: Given, some: slice, queries: slice, keys: slice) -> Iterator[tuple[slice, ...]]:
    """Yield where in q, k, v, bias and alpha the gradients of a part belong."""
    every = slice(None)
    yield some, every, queries
    yield some, every, keys
    yield some, every, keys
    yield () if given.bias is None else along(given.bias, (some, every, queries, keys))
    yield ()
