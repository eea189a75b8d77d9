"""What layers that stand in for one of torch's share: its weights and arguments taken over, shapes checked."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.parameters import Alpha

L = TypeVar("L", bound=nn.Module)


def place_of(layer: type[nn.Module], module: Any, kind: type[nn.Module]) -> dict[str, Any]:
    """Return the device and dtype of torch's module as keyword arguments, or raise unless it is of the kind.

    Args:
        layer: Ours, for messages.
        module: Whose weights are wanted.
        kind: Torch's class that `layer` stands in for.
    """
    owner, theirs = layer.__name__, f"torch.nn.{kind.__name__}"
    if not isinstance(module, kind) or isinstance(module, layer):
        raise TypeError(
            f"{owner}.from_torch(module of type {type(module).__name__}): needs a {theirs}; pass one"
            + (", or copy the layer with copy.deepcopy." if isinstance(module, layer) else ".")
        )
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise ValueError(
            f"{owner}.from_torch({type(module).__name__}): needs weights that have a shape; call the module once first."
        )
    weight = next(module.parameters())
    return {"device": weight.device, "dtype": weight.dtype}


def with_weights_of(module: nn.Module, layer: L, alpha: Any) -> L:
    """Return `layer` with torch's weights: values, which of them are frozen, and whether it trains.

    Orders aside, the layer's own parameters must be called as torch's.

    Args:
        module: Torch's.
        layer: Ours.
        alpha: What the layer was made with; an `Alpha` keeps its own flag of training, for it may be another layer's.

    Raises:
        ValueError: A weight has another shape than torch's, torch has none of that name, or a hook makes it.
    """
    orders = {id(each) for part in layer.modules() if isinstance(part, Alpha) for each in part.parameters()}
    with torch.no_grad():
        for name, own in layer.named_parameters():
            if id(own) not in orders:
                value, is_frozen = _weight_of(type(layer).__name__, module, name)
                if value.shape != own.shape:
                    raise ValueError(
                        f"{type(layer).__name__}.from_torch({type(module).__name__}): needs {name} of shape "
                        f"{tuple(own.shape)}; torch's has {tuple(value.shape)}, leave out the keyword that changes it."
                    )
                own.copy_(value)
                own.requires_grad_(not is_frozen)
    for part in layer.modules():
        part.training = part.training if part is alpha else module.training
    return layer


def _weight_of(owner: str, module: nn.Module, name: str) -> tuple[Tensor, bool]:
    """Return a weight of torch's module as it is now, and whether it is frozen, or raise."""
    call, (path, _, leaf) = f"{owner}.from_torch({type(module).__name__})", name.rpartition(".")
    part = dict(module.named_modules()).get(path)
    value = getattr(part, leaf, None)
    if value is None:
        raise ValueError(f"{call}: needs a module with {name}; pass one, or leave out the keyword that asks for it.")
    if part is not None and parametrize.is_parametrized(part, leaf):
        originals = part.parametrizations[leaf].parameters()  # type: ignore[index, union-attr]
        return value, not any(original.requires_grad for original in originals)
    if not isinstance(value, nn.Parameter):
        raise ValueError(
            f"{call}: needs {name} to be a parameter, and a hook makes this one anew at each call; remove it first "
            f"with prune.remove(module, {leaf!r}), remove_weight_norm(module) or remove_spectral_norm(module) of "
            "torch.nn.utils."
        )
    return value, not value.requires_grad


def check_images(owner: str, x: Tensor, channels: int, axes: int) -> None:
    """Raise unless x has `channels` channels before its last `axes` axes, and at most a batch before them."""
    check_dense(owner, "input", x)
    if x.ndim not in (axes + 1, axes + 2) or x.shape[-axes - 1] != channels:
        shape = f"{channels}, n" if axes == 1 else f"{channels}, height, width"
        raise ValueError(
            f"{owner}(input of shape {tuple(x.shape)}): needs [batch, {shape}] or [{shape}]; move the channels there "
            "with input.movedim, or make the layer with another in_channels."
        )


def arguments_of(module: nn.Conv1d | nn.Conv2d) -> dict[str, Any]:
    """Return what torch's convolution was made with."""
    names = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
    )
    return {"bias": module.bias is not None, **{name: getattr(module, name) for name in names}}
