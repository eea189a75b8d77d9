"""How every layer reads its order: `hpfracc_nn.layers.order` with PyTorch's `Alpha`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.layers.order import Bounds, Shape, begun


def started(
    owner: str,
    given: Definition,
    alpha: Any,
    *,
    bounds: Any,
    learn_alpha: bool,
    shape: Callable[[Shape], Shape],
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Definition, Alpha | None]:
    """Return a layer's definition and its order, which is None where it is fixed; see `begun`.

    Args:
        owner: As there.
        given: As there.
        alpha: As there.
        bounds: As there.
        learn_alpha: As there.
        shape: As there.
        device: Of a new order.
        dtype: Of a new order.

    Raises:
        TypeError: alpha is a tensor, or a module that is no `Alpha`.
        ValueError: alpha or bounds are out of range.
    """
    check_no_module(owner, "alpha", alpha)

    def make(first: Any, within: Bounds, wanted: Shape) -> Alpha:
        return Alpha(first, within, wanted, owner=owner, device=device, dtype=dtype)

    return begun(owner, given, alpha, Alpha, make, bounds=bounds, learn_alpha=learn_alpha, shape=shape)


def check_no_module(owner: str, argument: str, given: Any) -> None:
    """Raise where what should be numbers is a module that is no `Alpha`."""
    if isinstance(given, nn.Module) and not isinstance(given, Alpha):
        raise TypeError(
            f"{owner}({argument} of type {type(given).__name__}): needs numbers or an Alpha; make your module a "
            "subclass of Alpha, whose call returns the orders."
        )
