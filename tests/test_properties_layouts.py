"""Tensors of any shape and any place in memory: an operator and its adjoint act on each row by themselves."""

import numpy as np
import torch
from hypothesis import strategies as st

from hpfracc_nn.fractional import derivative
from tests.operator_problems import Problem, problems
from tests.properties import holds_for


def laid_out(values: np.ndarray, dim: int, layout: str) -> torch.Tensor:
    """Return a tensor [..., n] with its last axis moved to `dim`, in memory as `layout` says."""
    moved = torch.as_tensor(values).movedim(-1, dim)
    if layout == "strided":  # every other entry of a larger array
        wide = torch.repeat_interleave(moved, 2, dim=0)
        return wide.requires_grad_()[::2]
    if layout == "transposed":  # the same axes, the last one of them first in memory
        return moved.movedim(0, -1).contiguous().requires_grad_().movedim(-1, 0)
    if layout == "expanded":  # one signal that stands for three
        return moved.contiguous().requires_grad_().unsqueeze(0).expand(3, *moved.shape)
    return moved.contiguous().requires_grad_()


@holds_for(
    6,
    problem=problems(most=20),
    others=st.lists(st.integers(0, 3), max_size=2),
    layout=st.sampled_from(["contiguous", "strided", "transposed", "expanded"]),
    data=st.data(),
)
def test_any_layout_gives_what_its_rows_give_and_the_adjoint_the_transpose(
    problem: Problem, others: list[int], layout: str, data: st.DataObject
) -> None:
    """<D x, g> = <x, D' g> row by row, for empty batches too."""
    dim = data.draw(st.integers(-1 - len(others), -1))
    x = laid_out(problem.samples(*others), dim, layout)
    y = derivative(x, problem.definition, dt=problem.dt, dim=dim)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    g = torch.as_tensor(np.cos(np.arange(x.numel(), dtype=float))).reshape(x.shape)
    (adjoint,) = torch.autograd.grad(y, x, g)
    lost, last = problem.rounding(problem.samples(*others)), (lambda z: z.detach().movedim(dim, -1).numpy())
    np.testing.assert_allclose(last(y), last(x) @ problem.matrix.T, rtol=0, atol=lost)
    np.testing.assert_allclose(last(adjoint), last(g) @ problem.matrix, rtol=0, atol=lost)
