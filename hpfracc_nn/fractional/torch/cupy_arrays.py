"""CuPy's arrays, which torch computes: there and back through DLPack, without a copy.

DLPack orders the streams: torch's current one waits for CuPy's before the data are read, and CuPy's for torch's before
the result is. The result's memory belongs to torch, which uses it anew only when CuPy's stream has come so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def applied(owner: str, x: Any, apply: Callable[[Tensor], Tensor]) -> Any:
    """Return apply(x) for a CuPy array, as a CuPy array on the same device; nothing is recorded for a gradient.

    Raises:
        RuntimeError: torch finds no CUDA device that it can use.
    """
    if (reason := missing()) is not None:
        raise RuntimeError(
            f"{owner}(x of type cupy.ndarray): CuPy's arrays are computed by torch, and {reason}; "
            "pass cupy.asnumpy(x) to compute on the host."
        )
    import cupy

    with torch.no_grad(), torch.cuda.device(x.device.id):
        y = apply(torch.from_dlpack(x if _is_forward(x) else cupy.ascontiguousarray(x)))
        y.record_stream(torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr))
        return cupy.from_dlpack(y)


def missing() -> str | None:
    """Return why torch cannot compute arrays of CuPy, or None if it can."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch was built without CUDA; install one that was built with it"
    return None if torch.cuda.is_available() else "it finds no CUDA device that it can use"


def _is_forward(x: Any) -> bool:
    """Return whether no stride of a CuPy array is negative: torch has no negative strides."""
    return all(stride >= 0 for stride in x.strides)
