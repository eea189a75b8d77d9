"""The far past of a block of steps, added up one number after another: for states of a few numbers.

A matrix product would first write the weights of every pair of steps into a matrix, which takes longer than the sums.
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
    """Add to `out` what steps first, first + 1, ... have of the values before `first`.

    Args:
        backwards: The weights from the largest lag n down to lag 1, [a, outs, ins, n].
        values: [a, ins, r, n + 1], of which the first `first` are read.
        first: Of the steps, positive.
        out: [a, outs, rows, r].
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
