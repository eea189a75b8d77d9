"""The learned order alpha: a free parameter mapped into bounds, in modules whose state says how it is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn.fractional.alpha import Bounds, check_inside, check_taken, finite_bounds, first_values, order_shape
from hpfracc_nn.fractional.torch.place import check_place, gathered, placed_as, read
from hpfracc_nn.fractional.torch.tracing import is_watched

_PREFIX = "stated_"  # of the buffers' names
_LETTERS = 16  # of a word, so that every word has one shape


class Stated(nn.Module):
    """A module whose parameters mean nothing without numbers that it was made with, such as bounds.

    A state dict of it holds these numbers in its metadata, where torch keeps the versions of modules and which
    `torch.save` writes; and those that it was told to `keep` once more as small tensors, which every format writes. A
    state without either loads as it is. The tensors are buffers of int64, which no cast rounds. What counts are the
    attributes: buffers are made of them, whatever was averaged, broadcast or left empty.
    """

    def stated(self) -> dict[str, Any]:
        """Return the numbers by their names: plain Python values, which a file of weights alone may hold."""
        raise NotImplementedError(
            f"{type(self).__name__}.stated: it has none; return a dict of what the parameters need."
        )

    def keep(self, name: str, value: Any, device: torch.device) -> None:
        """Register the buffer of one of the numbers: two of them, a word, or tuples of places."""
        self.register_buffer(_PREFIX + name, _code(value).to(device))

    def reset_parameters(self) -> None:
        """Write the numbers into their buffers, where `to_empty` has left none."""
        self._buffers.update({name: code.to(self.get_buffer(name).device) for name, code in self._codes().items()})

    def _codes(self) -> dict[str, Tensor]:
        """Return what the buffers are to hold, on the CPU."""
        stated = {_PREFIX + name: value for name, value in self.stated().items()}
        return {name: _code(value) for name, value in stated.items() if self._buffers.get(name) is not None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, code in self._codes().items():
            destination[prefix + name] = code.to(self.get_buffer(name).device)
        metadata = getattr(destination, "_metadata", None)  # a plain dict that a caller has filled has none
        if metadata is not None:
            metadata[prefix[:-1]] = {**metadata.get(prefix[:-1], {}), **self.stated()}

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load as torch does, unless the state says other numbers and has parameters of this module."""
        present = {k: v for k, v in state_dict.items() if k.startswith(prefix) and isinstance(v, Tensor)}
        is_read = not all(_PREFIX in key[len(prefix) :] for key in present)  # else there is nothing to misread
        for name, own in self.stated().items():
            theirs = local_metadata.get(name, own)
            if theirs == own:
                theirs = _read(state_dict.get(prefix + _PREFIX + name), own)
            if theirs != own and is_read:
                error_msgs.append(
                    f"{prefix[:-1] or type(self).__name__}: needs a state with {name}={own!r}, which it was made with; "
                    f"the state has {name}={theirs!r}, make the layer as that of the state was made."
                )
                return
        for name, code in self._codes().items():  # also where there is none, as in older files: it is not missing
            state_dict[prefix + name] = code.to(next(iter(present.values()), self.get_buffer(name)).device)
        arguments = prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, *arguments)


def with_axes(module: nn.Module, state_dict: Any, prefix: str) -> None:
    """Give the numbers of an older state, which had no axis, the one that parameters have now."""
    for name, parameter in module.named_parameters():
        value = state_dict.get(prefix + name)
        if isinstance(value, Tensor) and value.ndim == 0 and parameter.shape == (1,):
            state_dict[prefix + name] = placed_as(value.reshape(1), parameter)


def _code(value: Any) -> Tensor:
    """Return integers that stand for numbers, by their bits, for a word, or for the places in each of several parts."""
    if isinstance(value, str):
        return torch.tensor(list(value.encode().ljust(_LETTERS)), device="cpu")
    if value and isinstance(value[0], tuple):
        part_of = {place: part for part, places in enumerate(value) for place in places}
        return torch.tensor([part_of[place] for place in sorted(part_of)], device="cpu")
    return torch.tensor(value, dtype=torch.float64, device="cpu").view(torch.int64)


def _read(code: Any, own: Any) -> Any:
    """Return what a tensor stands for, `own` where there is none, and its integers where they stand for nothing."""
    if not isinstance(code, Tensor) or code.is_meta:
        return own
    expected, found = _code(own), code.detach().cpu()
    if found.shape == expected.shape and torch.equal(found, expected.to(found.dtype)):
        return own
    numbers = found.tolist()
    if found.dtype != torch.int64 or found.ndim != 1:
        return numbers
    if isinstance(own, str):
        return bytes(numbers).decode().rstrip() if set(numbers) <= set(range(128)) else numbers
    if own and isinstance(own[0], tuple):
        return tuple(tuple(k for k, part in enumerate(numbers) if part == each) for each in sorted(set(numbers)))
    return tuple(found.view(torch.float64).tolist())


class Alpha(Stated):
    """Orders that stay strictly between two bounds: alpha = low + (high - low) sigmoid(raw).

    A layer with `learn_alpha=True` makes one and calls it `order`. One that is passed as a layer's alpha is that
    layer's order itself, so that several layers may share it.

    A state dict says between which bounds alpha lies, in a small buffer and in torch's metadata; only an order with the
    same bounds loads it. One that does not say it is taken at its word. The parameter of one order has one axis, which
    alpha has not: FSDP takes no other.

    Args:
        init: The first value or values, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `init` is broadcast; None is its own.
        owner: Who asks, for messages.
        device: Of the parameter.
        dtype: Of the parameter; alpha itself is float64.

    Raises:
        ValueError: `init` is not strictly inside the bounds, or they are no finite interval.

    Examples:
        >>> order = Alpha(0.4, (0, 1))
        >>> torch.nn.Sequential(FractionalLayer(order), torch.nn.Tanh(), FractionalLayer(order))
    """

    def __init__(
        self,
        init: float | Sequence[float] | np.ndarray,
        bounds: Bounds,
        shape: tuple[int, ...] | None = None,
        *,
        owner: str = "Alpha",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        low, high = self.bounds = finite_bounds(owner, bounds)
        check_place(owner, device, dtype)
        first = first_values(owner, read(init))
        check_inside(owner, init, first, self.bounds)
        self._shape = order_shape(owner, shape, first)
        self.raw = nn.Parameter(
            torch.empty(self._shape or (1,), device=device, dtype=dtype or torch.get_default_dtype())
        )
        values = torch.as_tensor(first, device="cpu")
        self._first = {"raw": torch.logit((values - low) / (high - low)).numpy()}
        self.keep("bounds", self.bounds, self.raw.device)
        self._begin()

    def reset_parameters(self) -> None:
        """Begin anew with the first values, as after `to_empty`."""
        super().reset_parameters()
        self._begin()

    def forward(self) -> Tensor:
        """Return alpha in real units, float64."""
        low, high = self.bounds
        part = torch.sigmoid(self._free(self.raw))
        if high - low != 1:  # what changes nothing is a step of autograd's all the same
            part = (high - low) * part
        return low + part if low else part

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of alpha."""
        return self._shape

    @property
    def mean(self) -> Tensor:
        """Alpha in real units, float64; of a random one (`ProbabilisticAlpha`) its mean, which is never drawn."""
        return self()

    def taken_by(self, owner: str, bounds: Any, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return its bounds for a layer that was given it as its order, or raise.

        Args:
            owner: The layer.
            bounds: What the layer was given as bounds besides, which must be None.
            shape: The shape that the layer needs.
        """
        check_taken(owner, type(self).__name__, self.bounds, self.shape, bounds, shape)
        return self.bounds

    def extra_repr(self) -> str:
        return f"shape={self.shape}, bounds=({self.bounds[0]:g}, {self.bounds[1]:g})"

    def stated(self) -> dict[str, Any]:
        """Return what alpha cannot be read from the parameters without, see `Stated`."""
        return {"bounds": self.bounds}

    @torch.no_grad()
    def _begin(self) -> None:
        for name, values in self._first.items():
            parameter = getattr(self, name)
            first = torch.as_tensor(values, device="cpu").expand(self._shape).reshape(parameter.shape)
            parameter.copy_(placed_as(first, parameter))

    def _free(self, parameter: Tensor) -> Tensor:
        """Return free numbers in float64 and alpha's shape, of processes that share them all of them."""
        if not self._shape and parameter.shape == (1,) and type(parameter) in (nn.Parameter, Tensor):
            return parameter.sum(dtype=torch.float64)  # one number without its axis, in one step
        found = gathered(parameter).to(torch.float64)
        if found.shape == self._shape:
            return found
        if found.numel() != math.prod(self._shape):
            raise RuntimeError(
                f"{type(self).__name__}: needs its {math.prod(self._shape)} numbers, and this process holds "
                f"{found.numel()} of them; read it inside FullyShardedDataParallel.summon_full_params(model)."
            )
        return found.reshape(self._shape)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *given: Any) -> None:
        """Load as `Stated` does, and nothing where a number is NaN."""
        with_axes(self, state_dict, prefix)
        broken = [name for name, _ in self.named_parameters() if _has_nan(state_dict.get(prefix + name))]
        for name in broken:
            given[-1].append(
                f"{prefix}{name}: needs numbers, and the state has NaN; load a state from before the training diverged."
            )
        if not broken:
            super()._load_from_state_dict(state_dict, prefix, *given)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take also what an older version pickled: an order without an axis, and no first values."""
        super().__setstate__(state)
        if "_shape" in self.__dict__:
            return
        self._shape = tuple(self.raw.shape)
        for parameter in self._parameters.values():
            if parameter is not None and parameter.ndim == 0:
                parameter.data = parameter.data.reshape(1)  # it stays the one that an optimizer knows
        self._first = {
            name: parameter.detach().to("cpu", torch.float64).reshape(self._shape).numpy()
            for name, parameter in self._parameters.items()
            if parameter is not None
        }
        for name, value in self.stated().items():
            self.keep(name, value, self.raw.device)


def _has_nan(value: Any) -> bool:
    """Whether a value of a state is known to have NaN."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta:
        return False
    found = gathered(value.detach())
    return not is_watched(found) and bool(found.float().isnan().any())
