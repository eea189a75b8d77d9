"""`recurrence.py` for time in the middle: a vector holds one sample of several signals that lie side by side.

x is [batch, 1, n, width]: all signals share one set of operands. They are worked on in tiles of one vector, `lanes_of`
them, by blocks of samples; lanes without a signal are zero. A unit of work is a few tiles of one batch, so that rows of
memory are read to their end: unit i is group i % groups of batch i // groups.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.numba import tile
from hpfracc_nn.fractional.numba.compiled import entry, inner
from hpfracc_nn.fractional.numba.panels import (
    VECTOR,
    advance_side_by_side,
    lanes_of,
    panel,
    size_of,
    subtract_rows,
)
from hpfracc_nn.fractional.numba.recurrence import CHUNK, ROWS, room

BLOCK = 8 * CHUNK
TILES = 8  # of a unit


def units(x: np.ndarray) -> int:
    """Return how many units x has."""
    return x.shape[0] * -(-x.shape[3] // (TILES * VECTOR // x.itemsize))


@inner
def whole(x):
    """Return x [batch, 1, n, width] without the axis of channels."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[3])


@inner
def lines(columns):
    """Return the columns [terms, 1, n] without it."""
    return columns.reshape(columns.shape[0], columns.shape[2])


@inner
def unit_of(index, width, like):
    """Return batch, first lane and end of a unit."""
    size = TILES * lanes_of(like)
    groups = -(-width // size)
    first = index % groups * size
    return index // groups, first, min(first + size, width)


@inner
def step_states(d, chunk, into, decay, state, s):
    """Write the states before a chunk to s [K, lanes]."""
    like, states = d[0], into.shape[1]
    size, lanes = size_of(like), lanes_of(like)
    for q in range(0, states, ROWS):
        advance_side_by_side(
            like, ROWS, 1, s.ctypes.data + q * lanes * size, into.ctypes.data + q * size, 1, states,
            d.ctypes.data + chunk * CHUNK * lanes * size, lanes, CHUNK,
            decay.ctypes.data + 8 * q, state.ctypes.data + 8 * q * lanes,
        )  # fmt: skip


@inner
def multiply(d, e, chunks, backwards, near, into, out, decay, state, s):
    """Write the product of d into e; the state goes on from call to call."""
    like, states = d[0], into.shape[1]
    size, lanes = size_of(like), lanes_of(like)
    for done in range(chunks):
        chunk = chunks - 1 - done if backwards else done
        step_states(d, chunk, into, decay, state, s)
        data = d.ctypes.data + chunk * CHUNK * lanes * size
        for at in range(0, CHUNK, ROWS):
            panel(
                like, ROWS, 1, e.ctypes.data + (chunk * CHUNK + at) * lanes * size, lanes,
                near.ctypes.data + at * size, 1, CHUNK, data, lanes, CHUNK,
                out.ctypes.data + at * size, 1, CHUNK, s.ctypes.data, lanes, states,
            )  # fmt: skip


@entry
def forward(x, y, begin, end, near, into, out, decay, powers, columns, m, subtract, taylor, start):
    """Write the operator on the units from `begin` to `end` of x into y; arguments as in `recurrence.forward`."""
    x, y, near, into, out, columns = whole(x), whole(y), near[0], into[0], out[0], lines(columns)
    n, width, terms, like = x.shape[1], x.shape[2], columns.shape[0], x[0, 0, 0]
    lanes, states = lanes_of(like), into.shape[1]
    d, e, s = room(BLOCK * lanes, x), room(BLOCK * lanes, x), room(states * lanes, x)
    state = room(TILES * states * lanes, decay).reshape(TILES, -1)
    raw, row, zeros = room((BLOCK + 2) * lanes, x), room(2 * lanes, x), np.zeros(lanes, x.dtype)
    head, totals = np.empty((TILES, 2 * lanes)), np.empty((TILES, lanes))
    values = np.empty((TILES, terms * lanes), x.dtype)
    for unit in range(begin, end):
        b, first_lane, end_lane = unit_of(unit, width, like)
        state[:] = 0
        totals[:] = 0
        for first in range(0, n, BLOCK):
            count = min(BLOCK, n - first)
            for t in range(-(-(end_lane - first_lane) // lanes)):
                at = first_lane + t * lanes
                used = min(lanes, end_lane - at)
                if first == 0:
                    tile.heads(x[b], at, used, head[t])
                tile.difference(x[b], at, used, first, count, d, raw, row, head[t], m, subtract, taylor, totals[t])
                if first == 0:
                    tile.values_at_start(d, head[t], values[t], start, terms)
                multiply(d, e, -(-count // CHUNK), False, near, into, out, decay, state[t], s)
                tile.add_columns(e, columns, first, count, values[t])
                put(y[b], at, used, first, count, e, zeros)


@entry
def backward(g, gx, begin, end, near, into, out, decay, powers, columns, m, subtract, taylor, start):
    """Write the transpose of `forward` on g into gx; the operands are the transposed ones."""
    g, gx, near, into, out, columns = whole(g), whole(gx), near[0], into[0], out[0], lines(columns)
    n, width, terms, like = g.shape[1], g.shape[2], columns.shape[0], g[0, 0, 0]
    lanes, states = lanes_of(like), into.shape[1]
    d, e, s = room(BLOCK * lanes, g), room((BLOCK + 2) * lanes, g), room(states * lanes, g)
    state, after = room(TILES * states * lanes, decay).reshape(TILES, -1), np.empty((TILES, 2 * lanes), g.dtype)
    raw, row, zeros = room((BLOCK + 2) * lanes, g), room(2 * lanes, g), np.zeros(lanes, g.dtype)
    sums, values = np.empty((TILES, 3 * lanes)), np.empty((TILES, terms * lanes))
    for unit in range(begin, end):
        b, first_lane, end_lane = unit_of(unit, width, like)
        state[:] = 0
        sums[:] = 0
        after[:] = 0
        values[:] = 0
        for first in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
            count = min(BLOCK, n - first)
            for t in range(-(-(end_lane - first_lane) // lanes)):
                at = first_lane + t * lanes
                used = min(lanes, end_lane - at)
                address, stride = tile.load(g[b], at, used, first, first + count, raw)
                tile.fill(d, address, stride, count, zeros)
                tile.project(d, columns, first, count, values[t], row)
                multiply(d, e, -(-count // CHUNK), True, near, into, out, decay, state[t], s)
                e[count * lanes : (count + 2) * lanes] = after[t]
                after[t] = e[: 2 * lanes]
                tile.difference_adjoint(e, first, count, n, m, subtract, taylor, start, terms, values[t], sums[t])
                put(gx[b], at, used, first, count, e, zeros)


@inner
def put(y, at, used, first, count, e, zeros):
    """Write a tile to the signals from `at` on."""
    like = e[0]
    lanes = lanes_of(like)
    if used < lanes:
        tile.store(y, at, used, first, count, e)
        return
    address = y.ctypes.data + (first * y.shape[1] + at) * size_of(like)
    subtract_rows(like, address, y.shape[1], e.ctypes.data, lanes, zeros.ctypes.data, 0, count)
