"""The compiled loops of `numba_mix.py`. All sources of what is compiled here stand in this file: see `compiled.py`.

Tensors come as addresses, so that one call does the work for all parameters. The rows of a parameter lie one behind
another. A block of the average is finished before the next one begins, and stays in the caches meanwhile.
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
    """Write factor * x."""
    for i in range(out.size):
        out[i] = factor * x[i]


@summed
def add(out, x, factor):
    """Add factor * x."""
    for i in range(out.size):
        out[i] += factor * x[i]


@inner
def approach(out, x, gain):
    """Move to x, by a part of the way or all of it."""
    if gain == 1:
        for i in range(out.size):
            out[i] = x[i]
    else:
        for i in range(out.size):
            out[i] += gain * (x[i] - out[i])


@entry
def mix(begin, end, grads, rows, averages, sizes, ends, block, first, weights, gains):
    """Average and remember the blocks from `begin` to `end`, counted through all parameters.

    Args:
        begin: The first block.
        end: That after the last one.
        grads: Addresses of the gradients.
        rows: Addresses of the remembered rows.
        averages: Addresses of the results.
        sizes: Values of each parameter.
        ends: Blocks of the parameters up to each one.
        block: Values of a block.
        first: Weight of the gradient.
        weights: Of the rows.
        gains: By which part each row moves to the gradient.
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
