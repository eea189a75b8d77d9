"""Implicit steps under transforms of torch.func and in forward mode.

Newton's iteration in plain operations, each of which a transform can follow. The last iteration begins at the solution,
where a step of Newton's method has the derivatives of the solution itself, whatever those of its start are: the first
exactly, and where the iteration before it began near the solution, the second too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import is_watched
from hpfracc_nn.solvers.faults import WITH_NEWTON, unsolved
from hpfracc_nn.solvers.roots import Roots
from hpfracc_nn.solvers.torch.faults import is_undefined, undefined
from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.solving import TOLERANCES, Convergence, newton_matrix, size
from hpfracc_nn.solvers.torch.wrapped import bare


def root_in_graph(field: Field, roots: Roots, n: int, memories: Tensor, w: Tensor, before: Tensor) -> Tensor:
    """Return y = m + w f(t_n, y) with derivatives of any kind.

    The Jacobian is dense whatever `roots` says, made row by row, so that f need not bear torch.func.vmap. In a batch of
    torch.func.vmap the iteration ends where it has converged for all.

    Raises:
        NotSolved: It does not converge.
        FloatingPointError: f is not finite.
        NotImplementedError: A tracer looks on, whose tensors have no values to converge.
    """
    m, y = memories[0], before
    if is_watched(bare(m)):
        raise NotImplementedError(
            "fdeint: an implicit step looks at values to know when it has converged, and a tracer's tensors have none; "
            "trace a solve by scheme='predictor_corrector', or keep the solve out of the traced part."
        )
    tolerance = TOLERANCES[field.dtype] if roots.tolerance is None else roots.tolerance
    convergence = Convergence(tolerance, bare(y), bare(m))
    for _ in range(roots.iterations):
        residual = m + w * field(n, y) - y
        matrix = newton_matrix(_jacobian(field, n, y), w, y)
        delta = torch.linalg.solve_ex(matrix, residual.reshape(-1, 1)).result.view_as(y)
        change = size(bare(delta))
        if not change < torch.inf and is_undefined(field, n, y):
            raise undefined(field, n, y, ", an iterate of the step's equation")
        y = y + delta
        if convergence.is_reached(change, bare(y), is_exact=True):
            return y
        if not change < torch.inf:
            break
    t = float(field.times[n])
    raise unsolved("fdeint", n, t, roots.iterations, WITH_NEWTON, change=convergence.change)


def _jacobian(field: Field, n: int, y: Tensor) -> Tensor:
    found = torch.func.jacrev(lambda z: field(n, z.view_as(y)).reshape(-1), chunk_size=1)(y.reshape(-1))
    assert isinstance(found, Tensor), "f has one argument"
    return found
