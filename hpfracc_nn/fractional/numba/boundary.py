"""What one signal sees before and after the product, block by block; `torch/boundary.py` says the same in aten.

x and gx are whole signals; d and e hold the samples from `first` to `last`, at their beginning. The columns are those
of d[start] (none where `start` is -1), x(0) and S = dt x'(0), as far as there are any.
"""

from __future__ import annotations

from hpfracc_nn.fractional.numba.compiled import inner, summed


@inner
def slope_weights(n):
    """Return the weights of the first four samples in S; see `stencil.slope_row`."""
    if n >= 4:
        return -11 / 6, 18 / 6, -9 / 6, 2 / 6
    if n == 3:
        return -3 / 2, 4 / 2, -1 / 2, 0.0
    if n == 2:
        return -1.0, 1.0, 0.0, 0.0
    return 0.0, 0.0, 0.0, 0.0


@inner
def slope(x):
    """Return S in double precision."""
    total, weights = 0.0, slope_weights(x.size)
    for k in range(min(4, x.size)):
        total += weights[k] * x[k]
    return total


@inner
def difference(x, d, first, last, m, subtract, taylor, total):
    """Write the m-th difference of x, less its Taylor polynomial if `subtract`; return the running sum for m = -1."""
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
    """Return d[1] from d[2] and d[3]: x'(0) is subtracted where no digits are lost."""
    if n == 2:
        return d.dtype.type(0)
    return d[2] / 2 if n == 3 else d[2] * (5 / 6) - d[3] / 3


@inner
def difference_adjoint(e, gx, first, last, m, subtract, taylor, start, values, sums):
    """Write the transpose of `difference` and of the columns' values; blocks come from the last to the first.

    e goes on for two more samples than the block and is overwritten; sums [3] is carried from block to block.
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
    """Return the sum, in parts that vector registers hold, in double precision."""
    found = 0.0
    for k in range(e.size):
        found += e[k]
    return found


@summed
def dot(a, b):
    """Return the product of two rows, in parts that vector registers hold."""
    found = a.dtype.type(0)
    for k in range(a.size):
        found += a[k] * b[k]
    return found


@inner
def values_at_start(x, d, values, start):
    """Write what the columns multiply."""
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
    """Write e plus every column of channel c, from sample `first` on, times its value."""
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
    """Add every column's product with g to its value."""
    for j in range(values.size):
        values[j] += dot(g, columns[j, c][first:])
