"""Modules whose state says how it is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn.fractional.torch.place import placed_as

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
