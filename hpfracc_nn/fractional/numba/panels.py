"""The two inner loops of the recurrence, written in vectors: what a loop over an array in memory cannot be.

A panel keeps a few rows of one vector register each, and adds products of a scalar with a row of a matrix to them. The
compiler keeps the rows in registers and broadcasts the scalars on the way from memory; loops over small arrays would
store and load every row at every step. Addresses are integers and strides count items.

Kagstrom, Ling & Van Loan, ACM Trans. Math. Softw. 24 (1998) 268, for products made of small panels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

# Bytes of a row: one register of AVX-512, two of anything narrower. The processor is the one that Numba compiles for,
# which its environment variables may name, not the one that is here: code on disk is keyed by the same features.
_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
VECTOR = 64 if "+avx512f" in _FEATURES else 32

_INDEX = ir.IntType(64)


class _Rows:
    """A few rows, each one SIMD vector in registers, and the LLVM instructions that load, combine and store them.

    The methods write code: their arguments and results are LLVM values, but for counts that are known when they are
    called. A panel that is narrower than a vector has rows of a part of its lanes.

    Args:
        builder: LLVM's builder of the function that is written.
        dtype: Numba's type of the numbers, float32 or float64.
        count: Number of rows.
        parts: A row has a vector's lanes divided by this, 1 or a power of two.
    """

    def __init__(self, builder: ir.IRBuilder, dtype: Any, count: int, parts: int):
        self.builder, self.count = builder, count
        self.scalar = ir.FloatType() if dtype == types.float32 else ir.DoubleType()
        self.size = 4 if dtype == types.float32 else 8
        self.lanes = VECTOR // self.size // parts
        self.vector = ir.VectorType(self.scalar, self.lanes)
        self.values = [ir.Constant(self.vector, [0.0] * self.lanes)] * count

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        kind = a.type
        name = f"llvm.fmuladd.v{kind.count}f{32 if kind.element == ir.FloatType() else 64}"
        function = cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return self.builder.call(function, [a, b, c])

    def items(self, count: Any) -> Any:
        """Return the size in bytes of `count` numbers."""
        return self.builder.mul(count, ir.Constant(_INDEX, self.size))

    def load(self, address: Any, kind: Any = None, align: int = 0) -> Any:
        pointer = self.builder.inttoptr(address, (kind or self.vector).as_pointer())
        return self.builder.load(pointer, align=align or self.size)

    def store(self, value: Any, address: Any, align: int = 0) -> None:
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=align or self.size)

    def splat(self, value: Any, lanes: int) -> Any:
        """Return a vector with `value` in each of its lanes."""
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(
            first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        )

    def fill(self, addresses: list[Any]) -> None:
        """Load each row from its address."""
        self.values = [self.load(address) for address in addresses]

    def accumulate(self, a: Any, row: Any, step: Any, b: Any, line: Any, count: Any) -> None:
        """Add sum over k < count of a[r * row + k * step] * b[k * line :] to every row r.

        `a` and `b` are addresses; `row`, `step` and `line` are strides that count numbers.
        """
        builder, one = self.builder, ir.Constant(_INDEX, 1)
        offsets = [builder.mul(self.items(row), ir.Constant(_INDEX, r)) for r in range(self.count)]
        step, line = self.items(step), self.items(line)
        before, body = builder.block, builder.append_basic_block("product")
        after = builder.append_basic_block("product.end")
        builder.cbranch(builder.icmp_signed(">", count, ir.Constant(_INDEX, 0)), body, after)
        builder.position_at_end(body)
        starts = (ir.Constant(_INDEX, 0), a, b, *self.values)
        moving = [builder.phi(start.type) for start in starts]
        for phi, start in zip(moving, starts, strict=True):
            phi.add_incoming(start, before)
        k, scalars, vector, *rows = moving
        factor = self.load(vector)
        results = [
            self.multiply_add(self.splat(self.load(builder.add(scalars, offset), self.scalar), self.lanes), factor, old)
            for offset, old in zip(offsets, rows, strict=True)
        ]
        following = (builder.add(k, one), builder.add(scalars, step), builder.add(vector, line), *results)
        for phi, value in zip(moving, following, strict=True):
            phi.add_incoming(value, body)
        builder.cbranch(builder.icmp_signed("<", following[0], count), body, after)
        builder.position_at_end(after)
        for r in range(self.count):
            merged = builder.phi(self.vector)
            merged.add_incoming(self.values[r], before)
            merged.add_incoming(results[r], body)
            self.values[r] = merged

    def addresses(self, first: Any, row: Any) -> list[Any]:
        step = self.items(row)
        found = [first]
        for _ in range(1, self.count):
            found.append(self.builder.add(found[-1], step))
        return found

    def widened(self, value: Any) -> Any:
        """Return `value`, a vector of the rows' precision, converted to double precision."""
        if self.size == 8:
            return value
        return self.builder.fpext(value, ir.VectorType(ir.DoubleType(), self.lanes))

    def narrowed(self, value: Any) -> Any:
        """Return `value`, a vector in double precision, converted to the rows' precision."""
        return value if self.size == 8 else self.builder.fptrunc(value, self.vector)


Emit = Callable[[_Rows, Any], None]


def _instruction(arguments: int, emit: Emit) -> Callable[..., Any]:
    """Return what a function decorated by Numba's `intrinsic` returns: a signature and a code generator.

    The instruction is f(like, rows, parts, *integers): `like` is a number of the dtype, and `rows` and `parts` are
    constants.

    Args:
        arguments: How many integers there are: addresses and strides.
        emit: emit(made, integers) writes the code by the methods of `made`, the `_Rows` of f's arguments.
    """

    def typed(typing: Any, like: Any, rows: Any, parts: Any, *rest: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
            emit(_Rows(builder, like, rows.literal_value, parts.literal_value), values[3:])
            return context.get_dummy_value()

        return types.void(like, rows, parts, *[types.intp] * arguments), generate

    return typed


def _constant(value: Callable[[int], int]) -> Callable[..., Any]:
    def typed(typing: Any, like: Any) -> Any:
        number = value(4 if like == types.float32 else 8)
        return types.intp(like), lambda context, builder, signature, values: ir.Constant(_INDEX, number)

    return typed


@intrinsic
def size_of(typing, like):
    """Return the bytes of an item, as a constant."""
    return _constant(lambda size: size)(typing, like)


@intrinsic
def lanes_of(typing, like):
    """Return how many items a vector holds, as a constant: loops over it become single instructions."""
    return _constant(lambda size: VECTOR // size)(typing, like)


@intrinsic(prefer_literal=True)
def panel(
    typing, like, rows, parts, c, row, a, a_row, a_step, b, b_line, b_count, d, d_row, d_step, e, e_line, e_count
):
    """Write c[r] = sum over k of a[r, k] b[k, :] plus the sum over k of d[r, k] e[k, :], for `rows` rows r.

    A row has a vector's lanes / `parts`. `a` and `d` are read one item at a time, at a_row * r + a_step * k; b, e and c
    a row at a time.
    """

    def emit(made: _Rows, values: Any) -> None:
        c, row, *rest = values
        made.accumulate(*rest[:6])
        made.accumulate(*rest[6:])
        for value, address in zip(made.values, made.addresses(c, row), strict=True):
            made.store(value, address)

    return _instruction(14, emit)(typing, like, rows, parts)


@intrinsic(prefer_literal=True)
def add_panel(typing, like, rows, parts, c, row, a, a_row, a_step, b, b_line, b_count):
    """Add the sum over k of a[r, k] b[k, :] to row c[r], for `rows` rows r; arguments as in `panel`."""

    def emit(made: _Rows, values: Any) -> None:
        c, row, *rest = values
        addresses = made.addresses(c, row)
        made.fill(addresses)
        made.accumulate(*rest)
        for value, address in zip(made.values, addresses, strict=True):
            made.store(value, address)

    return _instruction(8, emit)(typing, like, rows, parts)


@intrinsic(prefer_literal=True)
def advance(typing, like, rows, parts, s, s_row, a, a_row, a_step, b, b_line, count, decay, state, powers, p_row):
    """Scan rows u[r] = sum over k of a[r, k] b[k, :] in their order: s[r] = state, state = decay * state + u[r].

    The state and its decay are double precision, s and u have the precision of `like`. In single precision the rows are
    scanned from zero and the state is added to them, times powers[r] = decay**r; the state itself moves once, by
    decay**rows, in powers[rows]. What rounds then is never carried on.
    """

    def emit(made: _Rows, values: Any) -> None:
        s, s_row, *rest = values
        made.accumulate(*rest[:6])
        decay, state, powers, p_row = rest[6:]
        double = ir.VectorType(ir.DoubleType(), made.lanes)
        running = made.load(state, double, 8)
        addresses = made.addresses(s, s_row)
        if made.size == 8:
            factor = made.load(decay, double, 8)
            for value, address in zip(made.values, addresses, strict=True):
                made.store(running, address)
                running = made.multiply_add(factor, running, value)
            made.store(running, state)
            return
        begun, local = made.narrowed(running), None
        once, *higher = [made.load(at) for at in made.addresses(powers, p_row)][1:]
        made.store(begun, addresses[0])
        for value, address, power in zip(made.values, addresses[1:], (once, *higher), strict=False):
            local = value if local is None else made.multiply_add(once, local, value)
            made.store(made.multiply_add(power, begun, local), address)
        local = made.multiply_add(once, local, made.values[-1])
        made.store(made.multiply_add(made.load(decay, double, 8), running, made.widened(local)), state, 8)

    return _instruction(12, emit)(typing, like, rows, parts)


@intrinsic(prefer_literal=True)
def advance_side_by_side(typing, like, rows, parts, s, a, a_row, a_step, b, b_line, count, decay, state):
    """Move states by one chunk, each row r one state of several signals that lie side by side.

    First s[r] = state[r], then state[r] = decay[r] * state[r] + u[r], with u[r] the sum over k of a[r, k] b[k, :]. s
    and state have a vector's lanes / `parts` in a line; decay has one number per row.
    """

    def emit(made: _Rows, values: Any) -> None:
        s, *rest = values
        made.accumulate(*rest[:6])
        decay, state = rest[6:]
        builder, eight = made.builder, ir.Constant(_INDEX, 8)
        double = ir.VectorType(ir.DoubleType(), made.lanes)
        line = ir.Constant(_INDEX, made.lanes)
        for r, (value, address) in enumerate(zip(made.values, made.addresses(s, line), strict=True)):
            at = builder.add(state, ir.Constant(_INDEX, 8 * made.lanes * r))
            running = made.load(at, double, 8)
            made.store(made.narrowed(running), address)
            number = made.load(decay, ir.DoubleType(), 8)
            made.store(made.multiply_add(made.splat(number, made.lanes), running, made.widened(value)), at, 8)
            decay = builder.add(decay, eight)

    return _instruction(9, emit)(typing, like, rows, parts)


@intrinsic
def subtract_rows(typing, like, out, out_row, a, a_row, b, b_row, count):
    """Write out[k] = a[k] - b[k] for `count` rows of a vector.

    `out` may be the memory of a, or of b where no row is written before it is read.
    """

    def emit(made: _Rows, values: Any) -> None:
        builder = made.builder
        *walking, count = values
        addresses, steps = walking[::2], [made.items(step) for step in walking[1::2]]
        before, body = builder.block, builder.append_basic_block("rows")
        after = builder.append_basic_block("rows.end")
        builder.cbranch(builder.icmp_signed(">", count, ir.Constant(_INDEX, 0)), body, after)
        builder.position_at_end(body)
        starts = (ir.Constant(_INDEX, 0), *addresses)
        moving = [builder.phi(_INDEX) for _ in starts]
        for phi, start in zip(moving, starts, strict=True):
            phi.add_incoming(start, before)
        k, out, a, b = moving
        made.store(builder.fsub(made.load(a), made.load(b)), out)
        for phi, step in zip(moving, (ir.Constant(_INDEX, 1), *steps), strict=True):
            phi.add_incoming(builder.add(phi, step), body)
        builder.cbranch(builder.icmp_signed("<", builder.add(k, ir.Constant(_INDEX, 1)), count), body, after)
        builder.position_at_end(after)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        emit(_Rows(builder, like, 1, 1), values[1:])
        return context.get_dummy_value()

    return types.void(like, *[types.intp] * 7), generate
