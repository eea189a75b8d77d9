"""The loops of `numba_mix.py` that Numba compiles, all sources in this one file: see `compiled.py`.

Tensors come as addresses, so that one call does the work for all parameters. The rows of a parameter, its past
gradients or moving averages of them, lie one behind another. A block of the average is finished before the next one
begins, and stays in the caches meanwhile.
"""

from __future__ import annotations

from typing import Any

from numba import carray, types
from numba.extending import intrinsic

from hpfracc_nn.fractional.numba.compiled import entry, inner, summed


def _pointer(context: Any, address: Any, like: Any) -> Any:
    """Return signature and code of a Numba intrinsic: `address` as a pointer to items of the dtype of `like`."""
    signature = types.CPointer(like.dtype)(types.intp, like)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

    return signature, generate


pointer: Any = intrinsic(_pointer)


@inner
def scale(out, x, factor):
    """Set `out` to factor * x."""
    for i in range(out.size):
        out[i] = factor * x[i]


@summed
def add(out, x, factor):
    """Add factor * x to `out`."""
    for i in range(out.size):
        out[i] += factor * x[i]


@inner
def approach(out, x, gain):
    """Move `out` towards x: add gain * (x - out), or copy x where gain is 1."""
    if gain == 1:
        for i in range(out.size):
            out[i] = x[i]
    else:
        for i in range(out.size):
            out[i] += gain * (x[i] - out[i])


@entry
def mix(begin, end, grads, rows, averages, sizes, ends, block, first, weights, gains):
    """Write the averages and move the rows, for some blocks of values; blocks are counted through all parameters.

    Args:
        begin: The first block.
        end: The block after the last one.
        grads: The address of each parameter's gradient.
        rows: The address of each parameter's rows.
        averages: The address of each parameter's average.
        sizes: The number of values of each parameter.
        ends: The number of blocks of all parameters up to and including each one.
        block: The number of values of a block.
        first: The weight of the gradient.
        weights: The weights of the rows.
        gains: The part of its distance to the gradient by which each row moves.
    """
    size = weights.itemsize
    at = 0
    for count in range(begin, end):
        while ends[at] <= count:
            at += 1
        index = count - (ends[at - 1] if at else 0)
        low = index * block
        values = min(block, sizes[at] - low)
        grad = carray(pointer(grads[at] + low * size, weights), values)
        average = carray(pointer(averages[at] + low * size, weights), values)
        scale(average, grad, first)
        for row in range(weights.size):
            if weights[row] != 0:
                held = carray(pointer(rows[at] + (row * sizes[at] + low) * size, weights), values)
                add(average, held, weights[row])
        for row in range(gains.size):
            if gains[row] != 0:
                held = carray(pointer(rows[at] + (row * sizes[at] + low) * size, weights), values)
                approach(held, grad, gains[row])
