"""Modules whose state says how it is read."""

from __future__ import annotations

from typing import Any

from torch import nn


class Stated(nn.Module):
    """A module whose parameters mean nothing without numbers that it was made with, such as bounds.

    A state dict of it holds these numbers in its metadata, where torch keeps the versions of modules and which
    `torch.save` writes. So there is no key more, and a state without metadata loads as it is.
    """

    def stated(self) -> dict[str, Any]:
        """Return the numbers by their names: plain Python values, which a file of weights alone may hold."""
        raise NotImplementedError(
            f"{type(self).__name__}.stated: it has none; return a dict of what the parameters need."
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
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
        for name, own in self.stated().items():
            theirs = local_metadata.get(name, own)
            if theirs != own and any(key.startswith(prefix) for key in state_dict):
                error_msgs.append(
                    f"{prefix[:-1] or type(self).__name__}: needs a state with {name}={own!r}, which it was made with; "
                    f"the state has {name}={theirs!r}, make the layer as that of the state was made."
                )
                return
        arguments = prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, *arguments)
