"""The Triton program of `history_mix`, and an operation of torch made of it into which torch's compilers see.

A program takes a block of one parameter's values: the gradient stays in registers while every row is read once, and
written once where it changes. Importing this module needs Triton.
"""

# mypy: ignore-errors
# Triton reads the text of `mix`, torch the types of `history_mix`.

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 1024  # values of a program


@triton.jit(do_not_specialize=["count"])
def mix(grad_ptr, rows_ptr, average_ptr, numbers_ptr, size, count, BLOCK: tl.constexpr):
    """The Triton program: write the average of one block of values, and move its rows; see `history_mix`."""
    T: tl.constexpr = grad_ptr.dtype.element_ty
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    grad = tl.load(grad_ptr + at, here, 0.0)
    average = tl.load(numbers_ptr).to(T) * grad
    for row in range(count):
        weight = tl.load(numbers_ptr + 1 + row).to(T)
        gain = tl.load(numbers_ptr + 1 + count + row).to(T)
        held = rows_ptr + row * size.to(tl.int64) + at
        before = tl.zeros_like(grad)
        if (weight != 0) | ((gain != 0) & (gain != 1)):  # a row of weight 0 may hold numbers that are not finite
            before = tl.load(held, here, 0.0)
        if weight != 0:
            average += weight * before
        if gain != 0:
            moved = grad
            if gain != 1:
                moved = before + gain * (grad - before)
            tl.store(held, moved, here)
    tl.store(average_ptr + at, average, here)


def launch(wrap, grad: torch.Tensor, rows: torch.Tensor, average: torch.Tensor, numbers: torch.Tensor) -> None:
    """Launch wrap(mix) for one parameter; `wrap` is torch's or this package's way to call a Triton kernel.

    Shapes are those of `history_mix`.
    """
    size = grad.numel()
    wrap(mix)[(-(-size // BLOCK),)](grad, rows, average, numbers, size, rows.shape[0], BLOCK=BLOCK, num_warps=4)


def history_mix(grad: torch.Tensor, rows: torch.Tensor, average: torch.Tensor, numbers: torch.Tensor) -> None:
    """Write first * grad + the sum of weights[r] * rows[r] into `average`, and move rows[r] by gains[r] towards grad.

    Shapes: grad and average [n], rows [R, n], numbers [1 + 2 R] in float64: first, weights, gains.
    """
    launch(torch.library.wrap_triton, grad, rows, average, numbers)


OPERATION: Any = torch.library.triton_op("hpfracc_nn::history_mix", history_mix, mutates_args={"rows", "average"})


@OPERATION.register_fake
def _fake(*given) -> None:
    """The operation for tensors without data, with which torch's compilers trace: it does nothing."""
