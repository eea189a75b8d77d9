"""The chunked scan in Triton: the whole operator, or its transpose, in one pass over the data.

A program has ROWS rows of one channel, a tile of CHUNK samples of each at a time, and the states of all of them. Time
may be the last axis or, with MIDDLE, stand before `width` samples that lie side by side. A row is a signal or, where
there are few long ones, a segment of a signal: rows of a channel count through batch, segments and width. A pass with
ENDS and `chain` find the states before each segment.

The letters are those of `fractional/linear.py`: with X a chunk and S the states before it, Y = X intra + S C and
S' = A S + X B. The transpose goes through the same chunks from the last to the first, with the same three matrices
transposed, so that it is the adjoint for every length. What crosses the border of a segment there, by the differences
after the product, is found by one more chunk in front of the segment. `finish` then writes the first samples.

Of the boundary (`fractional/boundary.py`) only the number of differences is compiled in; the rest are arguments, so
that definitions share code. Nothing is added up by atomics. Importing this needs Triton.
"""

# mypy: ignore-errors
# ruff: noqa: D417, SIM102 -- arguments are told once; a condition on constants stands alone, it is not compiled
# Triton reads the text of these functions: their arguments are pointers, numbers and constants (`tl.constexpr`).

import triton
import triton.language as tl

# Arguments that are not compiled in where they are 1 or a multiple of 16: all numbers but n.
NUMBERS = ["rows", "channels", "width", "segments", "segment", "count", "own", "terms"]
EDGES = ["subtract", "taylor", "start"]
CHAINED = ["signals", "width", "segments", "count"]
FINISHED = ["signals", "batch", "channels", "width", "segments", "differences", "terms", *EDGES]
SUMS = tl.constexpr(4)  # of the transposed product: all samples, and three projections of the data on the columns
FIRST = tl.constexpr(6)  # samples of the transposed product that the first of the result rest on
RECORD = tl.constexpr(10)  # numbers that a segment leaves: those sums and samples


@triton.jit
def _read(at, tile, here, MIDDLE: tl.constexpr):
    """Return the samples [ROWS, CHUNK] at distances from an address, 0 where `here` is false.

    With MIDDLE neighbouring threads read those of neighbouring rows, which lie side by side.
    """
    if MIDDLE:
        return tl.trans(tl.load(at + tl.trans(tile), tl.trans(here), 0.0))
    else:
        return tl.load(at + tile, here, 0.0)


@triton.jit
def _write(at, tile, found, here, MIDDLE: tl.constexpr):
    """Write samples [ROWS, CHUNK], as `_read` reads them."""
    found = found.to(at.dtype.element_ty)
    if MIDDLE:
        tl.store(at + tl.trans(tile), tl.trans(found), tl.trans(here))
    else:
        tl.store(at + tile, found, here)


@triton.jit
def _slope_weight(k: tl.constexpr, n):
    """Return the weight of sample k in the estimate of dt x'(0) from the first four of n samples."""
    four: tl.constexpr = -11.0 / 6 if k == 0 else 3.0 if k == 1 else -1.5 if k == 2 else 1.0 / 3
    three: tl.constexpr = -1.5 if k == 0 else 2.0 if k == 1 else -0.5 if k == 2 else 0.0
    two: tl.constexpr = -1.0 if k == 0 else 1.0 if k == 1 else 0.0
    zero = (n * 0).to(tl.float64)
    return tl.where(n >= 4, zero + four, tl.where(n == 3, zero + three, tl.where(n == 2, zero + two, zero)))


@triton.jit
def _edge(k: tl.constexpr, x_ptr, origin, n, width, here, T: tl.constexpr):
    """Return sample k of the signal of each row, [ROWS]; 0 where k is not below n."""
    return tl.where(k < n, tl.load(x_ptr + origin + tl.minimum(k, n - 1) * width, here, 0.0).to(T), 0.0)


@triton.jit
def _head(x_ptr, origin, n, width, here, subtract, taylor, start, DIFFERENCES: tl.constexpr, T: tl.constexpr):
    """Return of each row what depends on its signal's first samples: eight arrays [ROWS].

    These are x(0) where it is subtracted; dt x'(0) where that is, in two parts; the first entry of the differences; the
    second one where they are second differences; and the three numbers that the columns multiply.
    """
    x0, x1 = _edge(0, x_ptr, origin, n, width, here, T), _edge(1, x_ptr, origin, n, width, here, T)
    x2, x3 = _edge(2, x_ptr, origin, n, width, here, T), _edge(3, x_ptr, origin, n, width, here, T)
    slope = _slope_weight(0, n) * x0.to(tl.float64) + _slope_weight(1, n) * x1.to(tl.float64)
    slope += _slope_weight(2, n) * x2.to(tl.float64) + _slope_weight(3, n) * x3.to(tl.float64)
    has_slope = (subtract != 0) & (taylor == 2)
    lead = tl.where(has_slope, slope, 0.0)
    rough = lead.to(T)
    fine = (lead - rough.to(tl.float64)).to(T)  # in two parts, so that nothing of it is lost in single precision
    base = tl.where(subtract != 0, x0, 0.0)
    third = ((x2 - x1) - (x1 - x0)).to(tl.float64)
    fourth = ((x3 - x2) - (x2 - x1)).to(tl.float64)
    # No digits are lost: x'(0) is subtracted from a difference of differences.
    without = tl.where(n == 2, third * 0, tl.where(n == 3, third / 2, third * (5.0 / 6) - fourth / 3))
    second = tl.where(has_slope, without.to(T), (x1 - x0) - (x0 - base))
    now = tl.where(start == 0, x0, tl.where(start == 1, x1, tl.where(start == 2, x2, x3)))
    before = tl.where(start == 1, x0, tl.where(start == 2, x1, tl.where(start == 3, x2, 0.0)))
    earlier = tl.where(start == 2, x0, tl.where(start == 3, x1, 0.0))
    d = _difference(now, before, earlier, base, rough, fine, DIFFERENCES)
    d = _at_edge(d, start, x0 - base, second, DIFFERENCES)
    starts = start >= 0
    return base, rough, fine, x0 - base, second, tl.where(starts, d, x0), tl.where(starts, x0, slope.to(T)), slope.to(T)


@triton.jit
def _difference(now, before, earlier, base, rough, fine, DIFFERENCES: tl.constexpr):
    """Return the differences of samples from those at the same time, one and two before; all but the first two."""
    if DIFFERENCES == 0:
        return now - base
    elif DIFFERENCES == 1:
        return ((now - before) - rough) - fine
    else:
        return (now - before) - (before - earlier)


@triton.jit
def _at_edge(d, k, zeroth, second, DIFFERENCES: tl.constexpr):
    """Return differences d at times k, with those at the first times put in, which have no samples before them."""
    if DIFFERENCES == 2:
        d = tl.where(k == 1, second, d)
    if DIFFERENCES > 0:
        d = tl.where(k == 0, zeroth, d)
    return d


@triton.jit
def _turned(v, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """Return v [ROWS, CHUNK] with the next sample in place of each, and the first in place of the last."""
    later = (tl.arange(0, CHUNK)[None, :] + 1) % CHUNK
    return tl.gather(v, tl.broadcast_to(later, (ROWS, CHUNK)), 1)


@triton.jit
def _column(columns_ptr, j: tl.constexpr, channel, channels, n, k):
    """Return column number j at times k, 0 behind the last."""
    return tl.load(columns_ptr + (j * channels + channel) * n + k, k < n, 0.0)


@triton.jit
def _operands(
    intra_ptr, b_ptr, c_ptr, a_ptr, channel, count, own,
    CHUNK: tl.constexpr, K: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Return the matrices inside a chunk, from a chunk to the states and from the states to a chunk, and the decay.

    With BACKWARD they are those of the transpose.
    """
    lag, q = tl.arange(0, CHUNK), tl.arange(0, K)
    intra = tl.load(intra_ptr + channel * own * CHUNK * CHUNK + lag[:, None] * CHUNK + lag[None, :])
    b = tl.load(b_ptr + lag[:, None] * count + q[None, :], (q < count)[None, :], 0.0)
    c = tl.load(c_ptr + channel * own * count * CHUNK + q[:, None] * CHUNK + lag[None, :], (q < count)[:, None], 0.0)
    decay = tl.load(a_ptr + q, q < count, 0.0)[None, :]
    if BACKWARD:
        return tl.trans(intra), tl.trans(c), tl.trans(b), decay
    else:
        return intra, b, c, decay


@triton.jit
def _place(channels, n, width, segments, segment, ROWS: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr):
    """Return this program's rows: their numbers, the offsets of their signals in the data, and their first times.

    The first time is 0, or with SPLIT that of the row's segment.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    part = row // width
    begin = tl.zeros((1,), tl.int64)
    if SPLIT:
        begin = part % segments * segment * CHUNK
        part = part // segments
    return row, (part * channels + tl.program_id(1)) * n * width + row % width, begin


@triton.jit
def _states(states_ptr, row, rows, ROWS: tl.constexpr, K: tl.constexpr, IS_GIVEN: tl.constexpr):
    """Return the states [ROWS, K] before the first chunk, in float64."""
    if IS_GIVEN:
        at = ((tl.program_id(1) * rows + row) * K)[:, None] + tl.arange(0, K)[None, :]
        return tl.load(states_ptr + at, (row < rows)[:, None], 0.0)
    else:
        return tl.zeros((ROWS, K), tl.float64)


@triton.jit
def _keep(states_ptr, state, row, rows, K: tl.constexpr):
    """Write the states after the last chunk of each row: what its segment adds to the states."""
    at = ((tl.program_id(1) * rows + row) * K)[:, None] + tl.arange(0, K)[None, :]
    tl.store(states_ptr + at, state, (row < rows)[:, None])


@triton.jit
def _multiplied(x, near, state, outward, PRECISION: tl.constexpr):
    """Return the results of a chunk x: the product inside of it, and what the states before it add."""
    y = tl.dot(x, near, input_precision=PRECISION, out_dtype=x.dtype)
    return tl.dot(state.to(x.dtype), outward, y, input_precision=PRECISION, out_dtype=x.dtype)


@triton.jit
def _moved(state, decay, x, inward, PRECISION: tl.constexpr):
    """Return the states after a chunk x, from those before it."""
    return state * decay + tl.dot(x, inward, input_precision=PRECISION, out_dtype=x.dtype).to(tl.float64)


@triton.jit(do_not_specialize=[*NUMBERS, *EDGES])
def forward(
    x_ptr, y_ptr, against_ptr, products_ptr, intra_ptr, b_ptr, c_ptr, a_ptr, columns_ptr, states_ptr,
    rows, channels, n, width, segments, segment, count, own, subtract, taylor, start, terms,
    DIFFERENCES: tl.constexpr, ENDS: tl.constexpr, SPLIT: tl.constexpr, MIDDLE: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the operator on x into y, or where `against` is given, the sum of the results times `against`.

    With ENDS only what each segment adds to the states is written. Grid: programs of `rows` rows, channels.

    Args:
        x_ptr, y_ptr, against_ptr: [batch, channels, n, width]; None where they are not used, as others too.
        products_ptr: [channels, programs], float64, a sum for each program.
        intra_ptr: [channels, CHUNK, CHUNK].
        b_ptr: [CHUNK, count].
        c_ptr: [channels, count, CHUNK].
        a_ptr: [count], float64.
        columns_ptr: [terms, channels, n].
        states_ptr: [channels, rows, K], float64, before or of each segment; read and written with SPLIT only.
        rows: Of a channel: batch times segments times width.
        segments, segment: How many of a signal, and their chunks.
        count: States of the model, at most K.
        own: 1 where channels have weights of their own, else 0.
    """
    T: tl.constexpr = intra_ptr.dtype.element_ty
    if not MIDDLE:
        width = 1
    channel, lag = tl.program_id(1), tl.arange(0, CHUNK)
    row, origin, begin = _place(channels, n, width, segments, segment, ROWS, CHUNK, SPLIT)
    tile = (origin + begin * width)[:, None] + (lag * width)[None, :]
    near, inward, outward, decay = _operands(intra_ptr, b_ptr, c_ptr, a_ptr, channel, count, own, CHUNK, K, False)
    base, rough, fine, zeroth, second, v0, v1, v2 = _head(
        x_ptr, origin, n, width, row < rows, subtract, taylor, start, DIFFERENCES, T
    )
    state = _states(states_ptr, row, rows, ROWS, K, SPLIT and not ENDS)
    product = tl.zeros((ROWS,), tl.float64)
    for step in range(segment):
        k = (begin + step * CHUNK)[:, None] + lag[None, :]
        here = (row < rows)[:, None] & (k < n)
        jump = tl.cast(step * CHUNK, tl.int64) * width
        now = _read(x_ptr + jump, tile, here, MIDDLE).to(T)
        before, earlier = now, now
        if DIFFERENCES >= 1:
            before = _read(x_ptr + (jump - width), tile, here & (k > 0), MIDDLE).to(T)
        if DIFFERENCES == 2:
            earlier = _read(x_ptr + (jump - 2 * width), tile, here & (k > 1), MIDDLE).to(T)
        d = _difference(now, before, earlier, base[:, None], rough[:, None], fine[:, None], DIFFERENCES)
        if step == 0:
            d = _at_edge(d, k, zeroth[:, None], second[:, None], DIFFERENCES)
        if not ENDS:
            y = _multiplied(d, near, state, outward, PRECISION)
            if terms > 0:
                y += _column(columns_ptr, 0, channel, channels, n, k) * v0[:, None]
            if terms > 1:
                y += _column(columns_ptr, 1, channel, channels, n, k) * v1[:, None]
            if terms > 2:
                y += _column(columns_ptr, 2, channel, channels, n, k) * v2[:, None]
            if against_ptr is None:
                _write(y_ptr + jump, tile, y, here, MIDDLE)
            else:
                against = _read(against_ptr + jump, tile, here, MIDDLE).to(T)
                product += tl.sum(tl.where(here, y * against, 0.0), 1).to(tl.float64)
        state = _moved(state, decay, d, inward, PRECISION)
    if ENDS:
        _keep(states_ptr, state, row, rows, K)
    elif against_ptr is not None:
        tl.store(products_ptr + channel * tl.num_programs(0) + tl.program_id(0), tl.sum(product, 0))


@triton.jit(do_not_specialize=NUMBERS)
def backward(
    x_ptr, y_ptr, intra_ptr, b_ptr, c_ptr, a_ptr, columns_ptr, states_ptr, records_ptr,
    rows, channels, n, width, segments, segment, count, own, terms,
    DIFFERENCES: tl.constexpr, ENDS: tl.constexpr, SPLIT: tl.constexpr, MIDDLE: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the operator's transpose on x into y, but for what `finish` adds to the first samples; see `forward`.

    Args:
        records_ptr: [channels, rows, RECORD], float64, what `finish` needs; None where nothing is added.
        x_ptr, y_ptr, intra_ptr, b_ptr, c_ptr, a_ptr, columns_ptr, states_ptr: As in `forward`.
        rows, channels, n, width, segments, segment, count, own: As there.
    """
    T: tl.constexpr = intra_ptr.dtype.element_ty
    if not MIDDLE:
        width = 1
    channel, lag = tl.program_id(1), tl.arange(0, CHUNK)
    row, origin, begin = _place(channels, n, width, segments, segment, ROWS, CHUNK, SPLIT)
    tile = (origin + begin * width)[:, None] + (lag * width)[None, :]
    near, inward, outward, decay = _operands(intra_ptr, b_ptr, c_ptr, a_ptr, channel, count, own, CHUNK, K, True)
    state = _states(states_ptr, row, rows, ROWS, K, SPLIT and not ENDS)
    is_last = (lag == CHUNK - 1)[None, :]
    ahead = tl.zeros((ROWS, CHUNK), T)  # where `is_last`: the first sample of the chunk that comes after in time
    after = ahead
    total = tl.zeros((ROWS,), tl.float64)
    p0, p1, p2 = total, total, total
    last, steps = segment - 1, segment
    if SPLIT:  # begin with the chunk behind the segment: the differences at the border need it, and ENDS counts it
        last = segment
        if not ENDS:
            steps = segment + 1
    for i in range(steps):
        step = last - i
        k = (begin + step * CHUNK)[:, None] + lag[None, :]
        here = (row < rows)[:, None] & (k < n)
        jump = tl.cast(step * CHUNK, tl.int64) * width
        x = _read(x_ptr + jump, tile, here, MIDDLE).to(T)
        is_part = step < segment
        if not ENDS:
            if records_ptr is not None:
                if (terms > 0) & is_part:
                    p0 += tl.sum(_column(columns_ptr, 0, channel, channels, n, k) * x, 1).to(tl.float64)
                    if terms > 1:
                        p1 += tl.sum(_column(columns_ptr, 1, channel, channels, n, k) * x, 1).to(tl.float64)
                    if terms > 2:
                        p2 += tl.sum(_column(columns_ptr, 2, channel, channels, n, k) * x, 1).to(tl.float64)
            y = _multiplied(x, near, state, outward, PRECISION)
            if records_ptr is not None:
                if DIFFERENCES <= 1:
                    total += tl.where(is_part, tl.sum(y, 1), 0.0).to(tl.float64)
                if step == 0:
                    record = records_ptr + (channel * rows + row)[:, None] * RECORD + SUMS + lag[None, :]
                    tl.store(record, y.to(tl.float64), (row < rows)[:, None] & (lag < FIRST)[None, :])
            if DIFFERENCES >= 1:
                later = _turned(y, ROWS, CHUNK)
                y -= tl.where(is_last, ahead, later)
                ahead = later
            if DIFFERENCES == 2:
                later = _turned(y, ROWS, CHUNK)
                y -= tl.where(is_last, after, later)
                after = later
            if SPLIT:
                here = here & (k < begin[:, None] + segment * CHUNK)
            _write(y_ptr + jump, tile, y, here, MIDDLE)
        state = _moved(state, decay, x, inward, PRECISION)
    if ENDS:
        _keep(states_ptr, state, row, rows, K)
    elif records_ptr is not None:
        _record(records_ptr, channel * rows + row, total, p0, p1, p2, row < rows)


@triton.jit
def _record(records_ptr, place, total, p0, p1, p2, here):
    record = records_ptr + place * RECORD
    tl.store(record, total, here)
    tl.store(record + 1, p0, here)
    tl.store(record + 2, p1, here)
    tl.store(record + 3, p2, here)


@triton.jit(do_not_specialize=CHAINED)
def chain(
    states_ptr, over_ptr, signals, width, segments, count,
    K: tl.constexpr, BACKWARD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Replace what each segment adds to the states by the states before it.

    Args:
        states_ptr: [channels times batch, segments, width, K], as the passes leave them.
        over_ptr: [count], the decay over a segment, float64.
        signals: Channels times batch times width.
        width, segments, count: As in `forward`.
    """
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    q, signal = at % K, at // K
    here = signal < signals
    over = tl.load(over_ptr + q, here & (q < count), 0.0)
    begin = ((signal // width * segments) * width + signal % width) * K + q
    state = tl.zeros((SIZE,), tl.float64)
    for i in range(segments):
        segment = segments - 1 - i if BACKWARD else i
        slot = states_ptr + begin + segment * width * K
        added = tl.load(slot, here, 0.0)
        tl.store(slot, state, here)
        state = state * over + added


@triton.jit(do_not_specialize=FINISHED)
def finish(
    records_ptr, y_ptr, signals, batch, channels, n, width, segments,
    differences, subtract, taylor, start, terms, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the first samples of the transpose, with the gradients of what is subtracted and of what columns multiply.

    Args:
        records_ptr: [channels, batch, segments, width, RECORD], as the passes leave them.
        y_ptr: [batch, channels, n, width].
        signals: Channels times batch times width.
        batch, channels, n, width, segments, differences, subtract, taylor, start, terms: As in `forward`.
    """
    T: tl.constexpr = tl.float64 if y_ptr.dtype.element_ty == tl.float64 else tl.float32
    signal = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    here, group, side = signal < signals, signal // width, signal % width
    record = records_ptr + (group * segments * width + side) * RECORD
    y = y_ptr + (group % batch * channels + group // batch) * n * width + side
    none = tl.zeros((SIZE,), tl.float64)
    total, p0, p1, p2 = none, none, none, none
    for segment in range(segments):
        of = record + segment * width * RECORD
        total += tl.load(of, here, 0.0)
        p0 += tl.load(of + 1, here, 0.0)
        p1 += tl.load(of + 2, here, 0.0)
        p2 += tl.load(of + 3, here, 0.0)
    starts = start >= 0
    more = tl.where(starts, p0, 0.0)
    total += more
    e0, e1 = _product_at(record, 0, here, start, more), _product_at(record, 1, here, start, more)
    used = tl.where(starts, 1, 0)
    value = tl.where(terms > used, tl.where(starts, p1, p0), 0.0)
    lead = tl.where(terms > used + 1, tl.where(starts, p2, p1), 0.0)
    if subtract != 0:
        value -= tl.where(differences == 0, total, tl.where(differences == 1, e0, e0 - e1))
        if taylor == 2:
            lead -= tl.where(differences == 1, total - e0, e1)
    for k in tl.static_range(4):
        one, two = _product_at(record, k, here, start, more), _product_at(record, k + 1, here, start, more)
        three = _product_at(record, k + 2, here, start, more)
        found = tl.where(differences == 0, one, tl.where(differences == 1, one - two, (one - two) - (two - three)))
        found += lead * _slope_weight(k, n)
        if k == 0:
            found += value
        if k < n:
            tl.store(y + k * width, found.to(T).to(y_ptr.dtype.element_ty), here)


@triton.jit
def _product_at(record, k: tl.constexpr, here, start, more):
    """Return sample k of the transposed product, with what the column that acts on the differences adds to it."""
    return tl.load(record + SUMS + k, here, 0.0) + tl.where(start == k, more, 0.0)
