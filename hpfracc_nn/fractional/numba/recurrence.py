"""The operator on a range of signals in one pass: differences, product and boundary columns while a block is in cache.

Chunks of 16 samples: lags inside a chunk are a small triangular product, everything before it is a sum of decaying
exponentials whose states are stepped in double precision from chunk to chunk (`linear.py` has the algebra).
Signals are independent, and nothing is shared between calls: threads may work on ranges of their own.

Operands, contiguous: near [C, 16, 16], into [C or 1, 16, K], out [C or 1, K, 16], decay [3, K] in float64, over 1, 4
and 8 chunks, and its powers [8, K] from 0 to 7 chunks; K is a multiple of 8. The transposed operator takes near^T,
out^T and into^T and runs backwards. Boundary columns are [terms, C, n]; signal i belongs to channel i % C.

Before and after the product, x and gx are whole signals; d and e hold the samples from `first` to `last`, at their
beginning. The columns are those of d[start] (none where `start` is -1), x(0) and S = dt x'(0), as far as there are any.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.numba.compiled import entry, inner, summed
from hpfracc_nn.fractional.numba.panels import advance, lanes_of, panel, size_of

CHUNK = 16
ROWS, FEW = 8, 4  # chunks that share a panel
STRIDE = CHUNK * ROWS
HALF = STRIDE // 2
BLOCK = 8 * STRIDE  # samples that are worked on at once, in the first cache


def units(x: np.ndarray) -> int:
    """Return how many units of work x has: the signals, batch times channels."""
    return x.shape[0] * x.shape[1]


@inner
def signals_of(x):
    """Return x [batch, C, n, 1] as [signals, n]."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


@inner
def room(count, like):
    """Return an array of `count` numbers of the dtype of `like`, uninitialised, that begins at a cache line."""
    memory = np.empty(count + 64 // like.itemsize, like.dtype)
    ahead = (64 - memory.ctypes.data % 64) % 64 // like.itemsize
    return memory[ahead : ahead + count]


@inner
def whole(count):
    """Return the number of samples in as many half strides as hold `count` samples."""
    return -(-count // HALF) * HALF


@inner
def step_states(d, length, at, backwards, into, states, decay, powers, state, s):
    """Write the states before each chunk of a stride of d to s [8, K], and move `state` to the end of the stride.

    Where no more samples are left it is half a stride, and s gets 4 rows. `at` is how many samples of d are done
    before, `length` how many d has, and `into` the address of the channel's matrix.
    """
    like = d[0]
    size, lanes, step = size_of(like), lanes_of(like), -CHUNK if backwards else CHUNK
    data = d.ctypes.data + (length - CHUNK - at if backwards else at) * size
    first, final, power = s.ctypes.data, state.ctypes.data, powers.ctypes.data
    is_half = length - at < STRIDE
    # In double precision the state moves from chunk to chunk, in single precision over all of them: see `advance`.
    fading = decay.ctypes.data + 8 * states * (0 if size == 8 else (1 if is_half else 2))
    q = 0
    while q < states:
        by = q * size
        if q + lanes > states:
            if is_half:
                advance(like, FEW, 2, first + by, states, data, step, 1, into + by, states, CHUNK, fading + 8 * q,
                        final + 8 * q, power + by, states)  # fmt: skip
            else:
                advance(like, ROWS, 2, first + by, states, data, step, 1, into + by, states, CHUNK, fading + 8 * q,
                        final + 8 * q, power + by, states)  # fmt: skip
        elif is_half:
            advance(like, FEW, 1, first + by, states, data, step, 1, into + by, states, CHUNK, fading + 8 * q,
                    final + 8 * q, power + by, states)  # fmt: skip
        else:
            advance(like, ROWS, 1, first + by, states, data, step, 1, into + by, states, CHUNK, fading + 8 * q,
                    final + 8 * q, power + by, states)  # fmt: skip
        q += lanes


@inner
def multiply(d, e, length, backwards, near, into, out, c, decay, powers, state, s):
    """Write the Toeplitz product of channel c with d into e, both of whole half strides.

    `state` [K] has the states before the block and goes on from call to call; `s` [8, K] is workspace.
    """
    like, states = d[0], into.shape[2]
    size, lanes, step = size_of(like), lanes_of(like), -CHUNK if backwards else CHUNK
    # Addresses, because a slice would be counted as a reference, which costs as much as a chunk.
    matrix = near.ctypes.data + c * CHUNK * CHUNK * size
    inward = into.ctypes.data + (c if into.shape[0] > 1 else 0) * CHUNK * states * size
    outward = out.ctypes.data + (c if out.shape[0] > 1 else 0) * CHUNK * states * size
    for done in range(0, length, STRIDE):
        step_states(d, length, done, backwards, inward, states, decay, powers, state, s)
        first = (length - CHUNK - done if backwards else done) * size
        data, result = d.ctypes.data + first, e.ctypes.data + first
        for at in range(0, CHUNK, lanes):
            inside, after = matrix + at * size, outward + at * size
            if length - done < STRIDE:
                panel(like, FEW, 1, result + at * size, step, data, step, 1, inside, CHUNK, CHUNK,
                      s.ctypes.data, states, 1, after, CHUNK, states)  # fmt: skip
            else:
                panel(like, ROWS, 1, result + at * size, step, data, step, 1, inside, CHUNK, CHUNK,
                      s.ctypes.data, states, 1, after, CHUNK, states)  # fmt: skip


@entry
def forward(x, y, begin, end, near, into, out, decay, powers, columns, m, subtract, taylor, start):
    """Write the operator on the signals from `begin` to `end` of x [batch, C, n, 1] into y.

    m says how often the data are differenced, `subtract` whether their Taylor polynomial of `taylor` terms is
    subtracted first; `start` is the entry of the differences that the first column multiplies, or -1.
    """
    x, y = signals_of(x), signals_of(y)
    n, channels, states = x.shape[1], near.shape[0], into.shape[2]
    size = min(BLOCK, whole(n))
    d, e, s = room(size, x), room(size, x), room(ROWS * states, x)
    state, values = room(states, decay), np.empty(columns.shape[0], x.dtype)
    for row in range(begin, end):
        c = row % channels
        state[:] = 0
        total = 0.0
        for first in range(0, n, BLOCK):
            last = min(first + BLOCK, n)
            length = whole(last - first)
            total = difference(x[row], d, first, last, m, subtract, taylor, total)
            d[last - first : length] = 0
            if first == 0:
                values_at_start(x[row], d, values, start)
            multiply(d, e, length, False, near, into, out, c, decay, powers, state, s)
            add_columns(y[row, first:last], e, columns, c, first, values)


@entry
def backward(g, gx, begin, end, near, into, out, decay, powers, columns, m, subtract, taylor, start):
    """Write the transpose of `forward` on g into gx; the operands are the transposed ones."""
    g, gx = signals_of(g), signals_of(gx)
    n, channels, states = g.shape[1], near.shape[0], into.shape[2]
    size = min(BLOCK, whole(n))
    d, e, s = room(size, g), room(size + 2, g), room(ROWS * states, g)
    state, sums, values = room(states, decay), np.empty(3), np.empty(columns.shape[0])
    for row in range(begin, end):
        c = row % channels
        state[:] = 0
        sums[:] = 0
        values[:] = 0
        e[:2] = 0
        for first in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
            last = min(first + BLOCK, n)
            length = whole(last - first)
            d[: last - first] = g[row, first:last]
            d[last - first : length] = 0
            project(d[: last - first], columns, c, first, values)
            e_next, e_after = e[0], e[1]
            multiply(d, e, length, True, near, into, out, c, decay, powers, state, s)
            e[last - first] = e_next
            e[last - first + 1] = e_after
            difference_adjoint(e, gx[row], first, last, m, subtract, taylor, start, values, sums)


@inner
def slope_weights(n):
    """Return the weights of the first four samples whose sum is S = dt x'(0), of n samples; see `stencil.slope_row`."""
    if n >= 4:
        return -11 / 6, 18 / 6, -9 / 6, 2 / 6
    if n == 3:
        return -3 / 2, 4 / 2, -1 / 2, 0.0
    if n == 2:
        return -1.0, 1.0, 0.0, 0.0
    return 0.0, 0.0, 0.0, 0.0


@inner
def slope(x):
    """Return S = dt x'(0) of a signal x [n], in double precision."""
    total, weights = 0.0, slope_weights(x.size)
    for k in range(min(4, x.size)):
        total += weights[k] * x[k]
    return total


@inner
def difference(x, d, first, last, m, subtract, taylor, total):
    """Write the m-th difference of x, less its Taylor polynomial if `subtract`, at samples `first` to `last` into d.

    Return the sum up to `last` for m = -1, where `total` is the sum up to `first`; else `total`.
    """
    zero = x.dtype.type(0)
    two = subtract and taylor == 2
    count = last - first
    if m >= 1:
        done = min(max(0, m - first), count)
        now, before, out = x[first + done : last], x[first + done - 1 : last - 1], d[done:count]
        if m == 1:
            lead = zero + (slope(x) if two else 0.0)
            for k in range(out.size):
                out[k] = now[k] - before[k] - lead
        else:
            earlier = x[first + done - 2 : last - 2]
            for k in range(out.size):
                out[k] = (now[k] - before[k]) - (before[k] - earlier[k])
        if first == 0:
            d[0] = zero if subtract else x[0]
            if m == 2 and x.size > 1:
                d[1] = (x[1] - x[0]) - d[0]
                if two:
                    d[1] = second_sample(d, x.size)
    else:
        now = x[first:last]
        base, lead = x[0] if subtract else zero, slope(x) if two else 0.0
        for k in range(count):
            d[k] = now[k] - base
        if two:
            for k in range(count):
                d[k] -= (first + k) * lead
        if m < 0:
            for k in range(count):
                total += d[k]
                d[k] = total
    return total


@inner
def second_sample(d, n):
    """Return d[1] of second differences less the Taylor polynomial as a sum of d[2] and d[3], which loses no digits."""
    if n == 2:
        return d.dtype.type(0)
    return d[2] / 2 if n == 3 else d[2] * (5 / 6) - d[3] / 3


@inner
def difference_adjoint(e, gx, first, last, m, subtract, taylor, start, values, sums):
    """Write the transposes of `difference` and `values_at_start` applied to a block e and to `values` into gx.

    Blocks come from the last to the first. e has two samples more than the block and is overwritten; sums [3] is
    carried from block to block.
    """
    n, count = gx.size, last - first
    two = subtract and taylor == 2
    out = gx[first:last]
    if first == 0 and start >= 0:
        e[start] += values[0]
    if m < 0:
        for k in range(count - 1, -1, -1):
            sums[2] += e[k]
            e[k] = sums[2]
    if m <= 0:
        for k in range(count):
            out[k] = e[k]
        if subtract:
            sums[0] += total(e[:count])
        if two:
            for k in range(count):
                sums[1] += (first + k) * e[k]
    elif first == 0 and subtract:
        if m == 1 and two:
            sums[0] += total(e[1:count])
        if m == 2 and two and n > 2:
            e[2] += e[1] * (0.5 if n == 3 else 5 / 6)
            if n > 3:
                e[3] -= e[1] / 3
        if m == 2 and two:
            e[1] = 0
        e[0] = 0
    elif m == 1 and two:
        sums[0] += total(e[:count])
    if m >= 1:
        later = e[1 : count + 1]
        if m == 1:
            for k in range(count):
                out[k] = e[k] - later[k]
        else:
            last_but_one = e[2 : count + 2]
            for k in range(count):
                out[k] = (e[k] - later[k]) - (later[k] - last_but_one[k])
            if first == 0 and subtract:
                out[0] = -(e[1] - e[2])
    if first == 0:
        if m <= 0 and subtract:
            gx[0] -= sums[0]
        row = slope_weights(n)
        lead = 0.0
        if two:
            lead = -sums[1] if m <= 0 else (-sums[0] if m == 1 else 0.0)
        at = 1 if start >= 0 else 0
        if values.size > at:
            gx[0] += values[at]
        if values.size > at + 1:
            lead += values[at + 1]
        if lead != 0:
            for k in range(min(4, n)):
                gx[k] += lead * row[k]


@summed
def total(e):
    """Return the sum of e in double precision, reordered into parts that vector registers hold."""
    found = 0.0
    for k in range(e.size):
        found += e[k]
    return found


@summed
def dot(a, b):
    """Return the scalar product of two rows, reordered into parts that vector registers hold."""
    found = a.dtype.type(0)
    for k in range(a.size):
        found += a[k] * b[k]
    return found


@inner
def values_at_start(x, d, values, start):
    """Write what the boundary columns multiply into `values`: d[start], x(0) and S, as far as there are columns."""
    at = 0
    if start >= 0:
        values[0] = d[start]
        at = 1
    if values.size > at:
        values[at] = x[0]
    if values.size > at + 1:
        values[at + 1] = slope(x)


@inner
def add_columns(y, e, columns, c, first, values):
    """Write e plus every boundary column of channel c, from sample `first` on, times its value, into y."""
    n = y.size
    if values.size == 0:
        for k in range(n):
            y[k] = e[k]
        return
    column, value = columns[0, c][first:], values[0]
    for k in range(n):
        y[k] = e[k] + column[k] * value
    for j in range(1, values.size):
        column, value = columns[j, c][first:], values[j]
        for k in range(n):
            y[k] += column[k] * value


@inner
def project(g, columns, c, first, values):
    """Add to `values` the scalar product of g with every boundary column of channel c, from sample `first` on."""
    for j in range(values.size):
        values[j] += dot(g, columns[j, c][first:])
