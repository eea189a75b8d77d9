"""The part of a solver's memory that comes from before a block of steps, by plain sums: for states of a few numbers.

A matrix product would first write the weights of every pair of steps into a matrix, which takes longer than the sums.

In shapes a counts sets of weights, ins the values that a step pushes, outs the memories that it has, and r the numbers
of a state; rows counts the steps of the block, n all steps.
"""

from __future__ import annotations

from hpfracc_nn.fractional.numba.compiled import entry, summed


@summed
def _dot(weights, values):  # type: ignore[no-untyped-def]
    total = weights[0] * values[0]
    for k in range(1, weights.size):
        total += weights[k] * values[k]
    return total


@entry
def far(backwards, values, first, out):  # type: ignore[no-untyped-def]
    """Add to the memories of steps first, first + 1, ... the weighted sum of the values of all steps before `first`.

    Args:
        backwards: The weights from the largest lag n down to lag 1, [a, outs, ins, n].
        values: The values of the steps, [a, ins, r, n + 1], of which the first `first` are read.
        first: The first step of the block, positive.
        out: The memories of the block's steps, [a, outs, rows, r], to which the sums are added.
    """
    n = backwards.shape[3]
    for a in range(out.shape[0]):
        for o in range(out.shape[1]):
            for i in range(out.shape[2]):
                begin = n - first - i  # where the lag of step first + i and value 0 stands
                for k in range(values.shape[1]):
                    row = backwards[a, o, k, begin : begin + first]
                    for c in range(values.shape[2]):
                        out[a, o, i, c] += _dot(row, values[a, k, c, :first])
