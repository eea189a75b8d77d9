"""Where parameters are made, and of what dtype, as constructors are told; and over which processes they are spread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def check_place(owner: str, device: Any, dtype: Any) -> None:
    """Raise unless parameters can be of this dtype, and the device is the name of one; None is torch's default."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"{owner}(dtype={dtype!r}): needs a floating dtype of torch; pass such as torch.float32.")
    if device is None or isinstance(device, torch.device):
        return
    if isinstance(device, bool) or not isinstance(device, str | int):
        raise TypeError(f"{owner}(device={device!r}): needs a device; pass such as 'cpu' or torch.device('cuda', 0).")
    try:
        torch.device(device)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{owner}(device={device!r}): needs the name of a device that is there, and torch says: "
            f"{str(error).splitlines()[0]}; pass such as 'cpu'."
        ) from None


def read(given: Any) -> Any:
    """Return a tensor's numbers as NumPy can read them, all else, and one that has no numbers, as it is."""
    return given.detach().cpu() if isinstance(given, Tensor) and not given.is_meta else given


def gathered(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that is spread over processes (a DTensor), with its gradient; others as they are."""
    if type(tensor) in (Tensor, nn.Parameter) or not is_spread(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole


def is_spread(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, without importing torch.distributed."""
    return hasattr(tensor, "full_tensor")


def placed_as(value: Tensor, like: Tensor) -> Tensor:
    """Return a value that every process has, spread as `like` is."""
    if not is_spread(like) or is_spread(value):
        return value
    from torch.distributed.tensor import distribute_tensor  # loaded, since there is such a tensor

    return distribute_tensor(
        value.to(like.device),
        like.device_mesh,  # type: ignore[attr-defined]
        like.placements,  # type: ignore[attr-defined]
        src_data_rank=None,
    )
