"""What signals that lie side by side see before and after the product: `boundary.py` on a tile [samples, lanes].

A tile holds the samples from `first` on, `count` of them; `head` [2, lanes] is x(0) and S = dt x'(0) of every lane.
"""

from __future__ import annotations

from numba import njit

from hpfracc_nn.fractional.numba.boundary import slope_weights

compiled = njit(nogil=True, cache=True, error_model="numpy")


@compiled
def load(x, at, used, first, count, d):
    """Copy samples of the lanes from `at` on into d; what they leave of whole chunks is zero."""
    lanes = d.shape[1]
    for k in range(count):
        row, now = d[k], x[first + k]
        if used == lanes:
            for j in range(lanes):
                row[j] = now[at + j]
        else:
            for j in range(used):
                row[j] = now[at + j]
    d[count : (count + 15) // 16 * 16] = 0


@compiled
def heads(x, at, used, head):
    """Write x(0) and S of every lane."""
    head[:] = 0
    row = slope_weights(x.shape[0])
    for j in range(used):
        head[0, j] = x[0, at + j]
        for k in range(min(4, x.shape[0])):
            head[1, j] += row[k] * x[k, at + j]


@compiled
def difference(d, before, head, first, count, n, m, subtract, taylor, totals):
    """Difference a tile in place; `before` [2, lanes] carries the last sample of each order from tile to tile."""
    lanes = d.shape[1]
    two = subtract and taylor == 2
    for order in range(m):
        carried = before[order].copy()
        before[order] = d[count - 1]
        for k in range(count - 1, 0, -1):
            for j in range(lanes):
                d[k, j] -= d[k - 1, j]
        for j in range(lanes):
            d[0, j] -= carried[j]
        if first == 0 and subtract:
            d[0] = 0
    if m == 1 and two:
        for k in range(1 if first == 0 else 0, count):
            for j in range(lanes):
                d[k, j] -= head[1, j]
    if m == 2 and two and first == 0 and n > 1:
        for j in range(lanes):
            d[1, j] = 0 if n == 2 else (d[2, j] / 2 if n == 3 else d[2, j] * (5 / 6) - d[3, j] / 3)
    if m <= 0 and subtract:
        for k in range(count):
            for j in range(lanes):
                d[k, j] -= head[0, j]
        if two:
            for k in range(count):
                for j in range(lanes):
                    d[k, j] -= (first + k) * head[1, j]
    if m < 0:
        for k in range(count):
            for j in range(lanes):
                totals[j] += d[k, j]
                d[k, j] = totals[j]


@compiled
def difference_adjoint(e, first, count, n, m, subtract, taylor, start, values, sums):
    """Bring a tile back through `difference` and the columns' values, in place; tiles come from the last to the first.

    e goes on for two more samples than the tile; sums [2, lanes] is carried from tile to tile.
    """
    lanes = e.shape[1]
    two = subtract and taylor == 2
    if first == 0 and start >= 0:
        for j in range(lanes):
            e[start, j] += values[0, j]
    if m < 0:
        for k in range(count - 1, -1, -1):
            for j in range(lanes):
                sums[1, j] += e[k, j]
                e[k, j] = sums[1, j]
    if m <= 0 and subtract:
        for k in range(count):
            for j in range(lanes):
                sums[0, j] += e[k, j]
                if two:
                    sums[1, j] += (first + k) * e[k, j]
    if m == 1 and two:
        for k in range(1 if first == 0 else 0, count):
            for j in range(lanes):
                sums[1, j] += e[k, j]
    if m >= 1 and first == 0 and subtract:
        if m == 2 and two:
            for j in range(lanes):
                if n > 2:
                    e[2, j] += e[1, j] * (0.5 if n == 3 else 5 / 6)
                if n > 3:
                    e[3, j] -= e[1, j] / 3
            e[1] = 0
        e[0] = 0
    for order in range(m):
        for k in range(count + m - 1 - order):
            for j in range(lanes):
                e[k, j] -= e[k + 1, j]
        if order == 0 and m == 2 and first == 0 and subtract:
            e[0] = 0
    if first == 0:
        add_heads(e, n, m, subtract, two, start, values, sums)


@compiled
def add_heads(e, n, m, subtract, two, start, values, sums):
    """Add what the first samples get for x(0) and S."""
    row, at = slope_weights(n), 1 if start >= 0 else 0
    for j in range(e.shape[1]):
        lead = -sums[1, j] if two and m <= 1 else 0.0
        if m <= 0 and subtract:
            e[0, j] -= sums[0, j]
        if values.shape[0] > at:
            e[0, j] += values[at, j]
        if values.shape[0] > at + 1:
            lead += values[at + 1, j]
        for k in range(min(4, n)):
            e[k, j] += lead * row[k]


@compiled
def add_columns(y, at, used, first, count, e, columns, values):
    """Write the tile, plus every column times its values, back to the lanes from `at` on."""
    for k in range(count):
        row, now = y[first + k], e[k]
        for i in range(columns.shape[0]):
            weight = columns[i, first + k]
            for j in range(now.size):
                now[j] += weight * values[i, j]
        for j in range(used):
            row[at + j] = now[j]


@compiled
def project(g, first, count, columns, values):
    """Add every column's product with the tile to its values."""
    for i in range(columns.shape[0]):
        for k in range(count):
            weight = columns[i, first + k]
            for j in range(g.shape[1]):
                values[i, j] += weight * g[k, j]


@compiled
def add_products(sums, first, count, g, values):
    """Add the tile times the columns' values to the columns' gradients [terms, n]."""
    for i in range(sums.shape[0]):
        for k in range(count):
            for j in range(g.shape[1]):
                sums[i, first + k] += g[k, j] * values[i, j]


@compiled
def values_at_start(d, head, values, start):
    """Write what the columns multiply: d[start] if there is such a column, then x(0) and S."""
    at = 1 if start >= 0 else 0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            values[i, j] = d[start, j] if i < at else head[i - at, j]
