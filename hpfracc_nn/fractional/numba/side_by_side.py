"""`recurrence.py` for time in the middle: a vector holds one sample of several signals that lie side by side.

x is [batch, n, width] and all signals share one set of operands, without the axis of channels. A unit of work is up to one
vector of signals, `lanes_of(x)` of them; unit i is part i % parts of batch i // parts. A tile [samples, lanes] holds a block
of a unit; lanes without a signal are zero.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hpfracc_nn.fractional.numba.panels import VECTOR, add_panel, advance_side_by_side, panel
from hpfracc_nn.fractional.numba.recurrence import CHUNK, ROWS, room
from hpfracc_nn.fractional.numba.tile import add_columns, add_products, difference, difference_adjoint, heads, load, project, values_at_start

BLOCK = 8 * CHUNK

compiled = njit(nogil=True, cache=True, error_model="numpy")


@compiled
def lanes_of(like):
    """Return the signals of a unit."""
    return VECTOR // like.itemsize


@compiled
def parts_of(x):
    """Return the units of one batch."""
    return -(-x.shape[2] // lanes_of(x))


@compiled
def step_states(d, chunk, into, decay, state, s):
    """Write the states before a chunk to s [K, lanes]."""
    like, size, lanes, states = d[0, 0], d.itemsize, d.shape[1], decay.size
    for q in range(0, states, ROWS):
        advance_side_by_side(
            like, ROWS, 1, s.ctypes.data + q * lanes * size, into.ctypes.data + q * size, 1, states,
            d.ctypes.data + chunk * CHUNK * lanes * size, lanes, CHUNK,
            decay.ctypes.data + 8 * q, state.ctypes.data + 8 * q * lanes,
        )  # fmt: skip


@compiled
def multiply(d, e, chunks, backwards, near, into, out, decay, state, s):
    """Write the product of d into e; the state goes on from call to call."""
    like, size, lanes = d[0, 0], d.itemsize, d.shape[1]
    for done in range(chunks):
        chunk = chunks - 1 - done if backwards else done
        step_states(d, chunk, into, decay, state, s)
        data = d.ctypes.data + chunk * CHUNK * lanes * size
        for at in range(0, CHUNK, ROWS):
            panel(
                like, ROWS, 1, e.ctypes.data + (chunk * CHUNK + at) * lanes * size, lanes,
                near.ctypes.data + at * size, 1, CHUNK, data, lanes, CHUNK,
                out.ctypes.data + at * size, 1, CHUNK, s.ctypes.data, lanes, decay.size,
            )  # fmt: skip


@compiled
def forward(x, y, begin, end, near, into, out, decay, columns, m, subtract, taylor, start):
    """Write the operator on the units from `begin` to `end` of x into y; arguments as in `recurrence.forward`."""
    n, lanes, parts = x.shape[1], lanes_of(x), parts_of(x)
    d, e = tile(BLOCK, x), tile(BLOCK, x)
    state, s = room(decay.size * lanes, decay), room(decay.size * lanes, x)
    before, head, totals = np.empty((2, lanes), x.dtype), np.empty((2, lanes)), np.empty(lanes)
    values = np.empty((columns.shape[0], lanes), x.dtype)
    d[:] = 0
    for unit in range(begin, end):
        b, at = unit // parts, unit % parts * lanes
        used = min(lanes, x.shape[2] - at)
        state[:] = 0
        before[:] = 0
        totals[:] = 0
        heads(x[b], at, used, head)
        d[:, used:] = 0
        for first in range(0, n, BLOCK):
            count = min(BLOCK, n - first)
            load(x[b], at, used, first, count, d)
            difference(d, before, head, first, count, n, m, subtract, taylor, totals)
            if first == 0:
                values_at_start(d, head, values, start)
            multiply(d, e, -(-count // CHUNK), False, near, into, out, decay, state, s)
            add_columns(y[b], at, used, first, count, e, columns, values)


@compiled
def backward(g, gx, begin, end, near, into, out, decay, columns, m, subtract, taylor, start):
    """Write the transpose of `forward` on g into gx; the operands are the transposed ones."""
    n, lanes, parts = g.shape[1], lanes_of(g), parts_of(g)
    d, e = tile(BLOCK, g), tile(BLOCK + 2, g)
    state, s = room(decay.size * lanes, decay), room(decay.size * lanes, g)
    sums, after = np.empty((2, lanes)), np.empty((2, lanes), g.dtype)
    values = np.empty((columns.shape[0], lanes))
    d[:] = 0
    for unit in range(begin, end):
        b, at = unit // parts, unit % parts * lanes
        used = min(lanes, g.shape[2] - at)
        state[:] = 0
        sums[:] = 0
        after[:] = 0
        values[:] = 0
        d[:, used:] = 0
        for first in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
            count = min(BLOCK, n - first)
            load(g[b], at, used, first, count, d)
            project(d, first, count, columns, values)
            multiply(d, e, -(-count // CHUNK), True, near, into, out, decay, state, s)
            e[count], e[count + 1] = after[0], after[1]
            after[0], after[1] = e[0], e[1]
            difference_adjoint(e, first, count, n, m, subtract, taylor, start, values, sums)
            add_columns(gx[b], at, used, first, count, e, columns[:0], values)


@compiled
def gram(x, g, begin, end, into, decay, m, subtract, taylor, start, near_sum, far_sum, column_sums):
    """Add the gradients of <forward(x), g> in near, far and the columns [terms, n], over the units from `begin` to `end`."""
    n, lanes, parts = x.shape[1], lanes_of(x), parts_of(x)
    d, grad, turned = tile(BLOCK, x), tile(BLOCK, x), room(CHUNK * lanes, x)
    state, s = room(decay.size * lanes, decay), room(decay.size * lanes, x)
    near, far = room(CHUNK * CHUNK, x), room(decay.size * CHUNK, x)
    before, head, totals = np.empty((2, lanes), x.dtype), np.empty((2, lanes)), np.empty(lanes)
    values = np.empty((column_sums.shape[0], lanes), x.dtype)
    d[:] = 0
    grad[:] = 0
    for unit in range(begin, end):
        b, at = unit // parts, unit % parts * lanes
        used = min(lanes, x.shape[2] - at)
        state[:] = 0
        before[:] = 0
        totals[:] = 0
        heads(x[b], at, used, head)
        d[:, used:] = 0
        grad[:, used:] = 0
        for first in range(0, n, BLOCK):
            count = min(BLOCK, n - first)
            load(x[b], at, used, first, count, d)
            load(g[b], at, used, first, count, grad)
            difference(d, before, head, first, count, n, m, subtract, taylor, totals)
            if first == 0:
                values_at_start(d, head, values, start)
            add_products(column_sums, first, count, grad, values)
            near[:] = 0
            far[:] = 0
            for chunk in range(-(-count // CHUNK)):
                step_states(d, chunk, into, decay, state, s)
                for k in range(CHUNK):
                    for j in range(lanes):
                        turned[j * CHUNK + k] = grad[chunk * CHUNK + k, j]
                correlate(d[chunk * CHUNK :], CHUNK, turned, near)
                correlate(s.reshape(-1, lanes), decay.size, turned, far)
            near_sum.reshape(-1)[:] += near
            far_sum.reshape(-1)[:] += far


@compiled
def tile(samples, like):
    """Return a tile that begins with a cache line."""
    return room(samples * lanes_of(like), like).reshape(samples, lanes_of(like))


@compiled
def correlate(a, rows, turned, result):
    """Add sum over lanes j of a[r, j] turned[j, :] to result[r, :]."""
    like, size, lanes = a[0, 0], a.itemsize, a.shape[1]
    for r in range(0, rows, ROWS):
        for at in range(0, CHUNK, lanes):
            add_panel(
                like, ROWS, 1, result.ctypes.data + (r * CHUNK + at) * size, CHUNK,
                a.ctypes.data + r * lanes * size, lanes, 1, turned.ctypes.data + at * size, CHUNK, lanes,
            )  # fmt: skip
