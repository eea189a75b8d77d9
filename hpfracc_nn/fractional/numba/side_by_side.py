"""`recurrence.py` for time in the middle: a vector holds one sample of several signals that lie side by side.

x is [batch, 1, n, width]: all signals share one set of operands. They are worked on in tiles, `lanes_of` signals (one
vector, a signal in each lane) by a block of samples; lanes without a signal are zero. A unit of work is a few tiles of
one batch, so that rows of memory are read to their end: unit i is group i % groups of batch i // groups.

A tile is a flat array, a vector per sample; it holds `count` samples from `first` on, of the `used` signals from `at`
on. Other flat arrays have a number for each lane: `head` has x(0), then S = dt x'(0); `values` what each boundary
column multiplies; the others what is carried from tile to tile.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.numba.compiled import entry, inner
from hpfracc_nn.fractional.numba.panels import (
    VECTOR,
    add_panel,
    advance_side_by_side,
    lanes_of,
    panel,
    size_of,
    subtract_rows,
)
from hpfracc_nn.fractional.numba.recurrence import CHUNK, ROWS, room, slope_weights

BLOCK = 8 * CHUNK
TILES = 8  # of a unit


def units(x: np.ndarray) -> int:
    """Return how many units of work x has."""
    return x.shape[0] * -(-x.shape[3] // (TILES * VECTOR // x.itemsize))


@inner
def whole(x):
    """Return x [batch, 1, n, width] without the axis of channels."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[3])


@inner
def lines(columns):
    """Return the boundary columns [terms, 1, n] without the axis of channels."""
    return columns.reshape(columns.shape[0], columns.shape[2])


@inner
def unit_of(index, width, like):
    """Return the batch of the unit with number `index`, its first signal, and the end of its signals."""
    size = TILES * lanes_of(like)
    groups = -(-width // size)
    first = index % groups * size
    return index // groups, first, min(first + size, width)


@inner
def step_states(d, chunk, into, decay, state, s):
    """Write the states before a chunk of the tile d to s [K, lanes], and move `state` past the chunk."""
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
    """Write the Toeplitz product with the tile d, of `chunks` chunks, into e; `state` goes on from call to call."""
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
                    heads(x[b], at, used, head[t])
                difference(x[b], at, used, first, count, d, raw, row, head[t], m, subtract, taylor, totals[t])
                if first == 0:
                    values_at_start(d, head[t], values[t], start, terms)
                multiply(d, e, -(-count // CHUNK), False, near, into, out, decay, state[t], s)
                add_columns(e, columns, first, count, values[t])
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
                address, stride = load(g[b], at, used, first, first + count, raw)
                fill(d, address, stride, count, zeros)
                project(d, columns, first, count, values[t], row)
                multiply(d, e, -(-count // CHUNK), True, near, into, out, decay, state[t], s)
                e[count * lanes : (count + 2) * lanes] = after[t]
                after[t] = e[: 2 * lanes]
                difference_adjoint(e, first, count, n, m, subtract, taylor, start, terms, values[t], sums[t])
                put(gx[b], at, used, first, count, e, zeros)


@inner
def put(y, at, used, first, count, e, zeros):
    """Write the tile e, `count` samples of `used` signals, into y, from sample `first` and signal `at` on."""
    like = e[0]
    lanes = lanes_of(like)
    if used < lanes:
        store(y, at, used, first, count, e)
        return
    address = y.ctypes.data + (first * y.shape[1] + at) * size_of(like)
    subtract_rows(like, address, y.shape[1], e.ctypes.data, lanes, zeros.ctypes.data, 0, count)


@inner
def load(x, at, used, first, last, raw):
    """Return address and stride of samples `first` to `last` of a tile's signals.

    They are those of x itself, or of a copy in `raw` where there are fewer signals than lanes.
    """
    lanes, size = lanes_of(raw[0]), size_of(raw[0])
    if used == lanes:
        return x.ctypes.data + (first * x.shape[1] + at) * size, x.shape[1]
    for k in range(last - first):
        now, row = x[first + k], raw[k * lanes : (k + 1) * lanes]
        row[used:] = 0
        for j in range(used):
            row[j] = now[at + j]
    return raw.ctypes.data, lanes


@inner
def store(y, at, used, first, count, e):
    """Write into y the first `used` lanes of the tile e, as `put` does; the other lanes have no signal."""
    lanes = lanes_of(e[0])
    for k in range(count):
        now, row = y[first + k], e[k * lanes : (k + 1) * lanes]
        for j in range(used):
            now[at + j] = row[j]


@inner
def fill(d, address, stride, count, zeros):
    """Copy `count` samples into the tile d, and fill its last chunk up with zeros."""
    like = d[0]
    lanes = lanes_of(like)
    subtract_rows(like, d.ctypes.data, lanes, address, stride, zeros.ctypes.data, 0, count)
    d[count * lanes : -(-count // CHUNK) * CHUNK * lanes] = 0


@inner
def heads(x, at, used, head):
    """Write x(0) and S of every lane into `head`."""
    lanes = head.size // 2
    head[:] = 0
    row = slope_weights(x.shape[0])
    for j in range(used):
        head[j] = x[0, at + j]
        for k in range(min(4, x.shape[0])):
            head[lanes + j] += row[k] * x[k, at + j]


@inner
def values_at_start(d, head, values, start, terms):
    """Write what the columns multiply into `values`: d[start] if there is such a column, then x(0) and S."""
    lanes, at = lanes_of(d[0]), 1 if start >= 0 else 0
    for i in range(terms):
        for j in range(lanes):
            values[i * lanes + j] = d[start * lanes + j] if i < at else head[(i - at) * lanes + j]


@inner
def difference(x, at, used, first, count, d, raw, row, head, m, subtract, taylor, totals):
    """Write the m-th difference of the samples, less their Taylor polynomials where `subtract`, into the tile d.

    `raw` is workspace for two samples more than a tile, `row` for two samples.
    """
    like, n = d[0], x.shape[0]
    lanes, size = lanes_of(like), size_of(like)
    two = subtract and taylor == 2
    before = min(first, max(m, 0))
    address, stride = load(x, at, used, first - before, first + count, raw)
    address += before * stride * size
    done = max(m, 0) - before  # samples that have too few before them
    tile, step = d.ctypes.data, lanes * size
    if m == 1:
        subtract_rows(
            like, tile + done * step, lanes, address + done * stride * size, stride,
            address + (done - 1) * stride * size, stride, count - done,
        )  # fmt: skip
    elif m == 2:
        later = raw.ctypes.data
        # In place where lanes have no signal: a row is read before it is written, then by the row after it only.
        subtract_rows(
            like, later, lanes, address + (1 - before) * stride * size, stride,
            address - before * stride * size, stride, count + before - 1,
        )  # fmt: skip
        subtract_rows(
            like, tile + done * step, lanes, later + step, lanes, later, lanes, count - done,
        )  # fmt: skip
    else:
        row[:lanes] = 0
        if subtract:
            for j in range(lanes):
                row[j] = head[j]
        subtract_rows(like, tile, lanes, address, stride, row.ctypes.data, 0, count)
    if first == 0 and m >= 1:
        for j in range(lanes):
            zeroth = 0 if subtract else head[j]
            d[j] = zeroth
            if m == 2 and n > 1:
                d[lanes + j] = (x[1, at + j] - x[0, at + j] if j < used else 0) - zeroth
                if two:
                    second, third = d[2 * lanes + j], d[3 * lanes + j]
                    d[lanes + j] = 0 if n == 2 else (second / 2 if n == 3 else second * (5 / 6) - third / 3)
    if m == 1 and two:
        for j in range(lanes):
            row[j] = head[lanes + j]
        subtract_rows(like, tile + done * step, lanes, tile + done * step, lanes, row.ctypes.data, 0, count - done)
    if m <= 0 and two:
        for k in range(count):
            for j in range(lanes):
                d[k * lanes + j] -= (first + k) * head[lanes + j]
    if m < 0:
        for k in range(count):
            for j in range(lanes):
                totals[j] += d[k * lanes + j]
                d[k * lanes + j] = totals[j]
    d[count * lanes : -(-count // CHUNK) * CHUNK * lanes] = 0


@inner
def difference_adjoint(e, first, count, n, m, subtract, taylor, start, terms, values, sums):
    """Apply the transposes of `difference` and `values_at_start` to the tile e and `values`, in place in e.

    Tiles come from the last to the first. e has two samples more than the tile; `sums`, three numbers for each lane, is
    carried from tile to tile.
    """
    like = e[0]
    lanes = lanes_of(like)
    more, running = sums[lanes:], sums[2 * lanes :]
    tile, step = e.ctypes.data, lanes * size_of(like)
    two = subtract and taylor == 2
    if first == 0 and start >= 0:
        for j in range(lanes):
            e[start * lanes + j] += values[j]
    if m < 0:
        for k in range(count - 1, -1, -1):
            for j in range(lanes):
                running[j] += e[k * lanes + j]
                e[k * lanes + j] = running[j]
    if m <= 0 and subtract:
        for k in range(count):
            for j in range(lanes):
                sums[j] += e[k * lanes + j]
                if two:
                    more[j] += (first + k) * e[k * lanes + j]
    if m == 1 and two:
        for k in range(1 if first == 0 else 0, count):
            for j in range(lanes):
                more[j] += e[k * lanes + j]
    if m >= 1 and first == 0 and subtract:
        if m == 2 and two:
            for j in range(lanes):
                if n > 2:
                    e[2 * lanes + j] += e[lanes + j] * (0.5 if n == 3 else 5 / 6)
                if n > 3:
                    e[3 * lanes + j] -= e[lanes + j] / 3
            e[lanes : 2 * lanes] = 0
        e[:lanes] = 0
    for order in range(m):
        subtract_rows(like, tile, lanes, tile, lanes, tile + step, lanes, count + m - 1 - order)
        if order == 0 and m == 2 and first == 0 and subtract:
            e[:lanes] = 0
    if first == 0:
        add_heads(e, n, m, subtract, two, start, terms, values, sums)


@inner
def add_heads(e, n, m, subtract, two, start, terms, values, sums):
    """Add to the first samples of e the cotangents that reach them through x(0) and S."""
    lanes, row, at = lanes_of(e[0]), slope_weights(n), 1 if start >= 0 else 0
    for j in range(lanes):
        lead = -sums[lanes + j] if two and m <= 1 else 0.0
        if m <= 0 and subtract:
            e[j] -= sums[j]
        if terms > at:
            e[j] += values[at * lanes + j]
        if terms > at + 1:
            lead += values[(at + 1) * lanes + j]
        for k in range(min(4, n)):
            e[k * lanes + j] += lead * row[k]


@inner
def add_columns(e, columns, first, count, values):
    """Add every boundary column, of `columns` [terms, n], times its values to the tile e."""
    like, terms, n = e[0], columns.shape[0], columns.shape[1]
    lanes, size = lanes_of(like), size_of(like)
    whole = count // ROWS * ROWS
    for k in range(0, whole, ROWS):
        add_panel(
            like, ROWS, 1, e.ctypes.data + k * lanes * size, lanes,
            columns.ctypes.data + (first + k) * size, 1, n, values.ctypes.data, lanes, terms,
        )  # fmt: skip
    for k in range(whole, count):
        add_panel(
            like, 1, 1, e.ctypes.data + k * lanes * size, lanes,
            columns.ctypes.data + (first + k) * size, 1, n, values.ctypes.data, lanes, terms,
        )  # fmt: skip


@inner
def project(g, columns, first, count, values, row):
    """Add to `values` the product of every boundary column with the tile g; `row` is workspace for one sample."""
    like, n = g[0], columns.shape[1]
    lanes, size = lanes_of(like), size_of(like)
    for i in range(columns.shape[0]):
        row[:lanes] = 0
        add_panel(
            like, 1, 1, row.ctypes.data, 0,
            columns.ctypes.data + (i * n + first) * size, 0, 1, g.ctypes.data, lanes, count,
        )  # fmt: skip
        for j in range(lanes):
            values[i * lanes + j] += row[j]
