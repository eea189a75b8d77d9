"""The numbers of a tensor inside a transform of torch.func, whose tensors have none of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import is_watched


def bare(x: Tensor) -> Tensor:
    """Return the tensor that holds the numbers: under vmap with the axes of the batch, in whatever place."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return x.detach()


def is_shared(x: Tensor) -> bool:
    """Whether all of a batch have the same numbers: no vmap has a batch of `x`."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return False
        x = functorch.get_unwrapped(x)
    return True


def is_finite(x: Tensor) -> bool:
    """Whether all numbers are finite; a tracer's tensors have no numbers and pass."""
    plain = bare(x)
    return is_watched(plain) or bool(torch.isfinite(plain.sum())) or bool(torch.isfinite(plain).all())
