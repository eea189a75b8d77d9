"""The chunked scan in Triton as an operation of torch, `hpfracc_nn::chunked_scan`, into which compilers see.

The operation is the operator itself, or its transpose, on tensors [batch, channels, n, width], with the matrices of a
`StateSpace` of chunks of 16 samples and the numbers of a `Boundary` as arguments. Inductor and AOTInductor compile its
kernels into their programs, which then need no Python. It is differentiable in the data. Importing this module
registers the operation, and imports Triton.
"""

# No annotations as text: torch reads the types of the arguments here.

from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.linear import StateSpace
from hpfracc_nn.fractional.torch.kernels.triton_product import Around, Scan, operands, segment_of


def _chunked_scan(
    x: Tensor,
    intra: Tensor,
    B: Tensor,
    C: Tensor,
    A: Tensor,
    columns: Tensor | None,
    differences: int,
    subtract: bool,
    taylor: int,
    start: int,
    segment: int,
    transposed: bool,
) -> Tensor:
    """Return the operator on x, or with `transposed` its transpose; the numbers are those of `Around` and `Scan`."""
    batch, channels, n, width = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    around = Around(differences, subtract, taylor, start)
    model = intra.contiguous(), B.contiguous(), C.contiguous(), A.contiguous()
    scan = Scan(model, columns, around, (batch, channels, n, width), segment, torch.library.wrap_triton)
    (scan.backward if transposed else scan.forward)(x.contiguous(), y)
    return y


OPERATION: Any = torch.library.triton_op("hpfracc_nn::chunked_scan", _chunked_scan, mutates_args={})


@OPERATION.register_fake
def _fake(x: Tensor, *given: Any) -> Tensor:
    """Return an empty tensor like the result: no kernel runs on tensors without data."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *model, columns, _, _, _, _, _, _ = inputs
    ctx.save_for_backward(*model, columns)
    ctx.numbers = inputs[6:]


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    if any(ctx.needs_input_grad[1:]):
        raise RuntimeError(
            "hpfracc_nn::chunked_scan is differentiable in the data only; learn an order through the operators, whose "
            "gradient in it is their own."
        )
    *numbers, transposed = ctx.numbers
    return (OPERATION(g, *ctx.saved_tensors, *numbers, not transposed), *[None] * 11)


OPERATION.register_autograd(_backward, setup_context=_setup)


def applied(model: StateSpace, b: Boundary, x: Tensor) -> Tensor:
    """Return the operator on x [batch, channels, n, width], with the weights of a model of chunks of 16.

    Raises:
        ValueError: The operator needs sums before the product, as integrals of an order above 1 do.
    """
    if b.differences < 0:
        raise ValueError("hpfracc_nn::chunked_scan takes 0 to 2 differences; sums before the product are torch's.")
    batch, channels, n, width = x.shape
    segment = segment_of((batch, channels, n, width), str(x.device))
    numbers = b.differences, b.subtract, b.taylor, b.start, segment
    return OPERATION(x, *operands(model), b.columns, *numbers, False)
