"""Whether a call is traced or transformed, and how compilers are kept away from a function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import eval_frame
from torch.autograd import forward_ad

PLAIN = (Tensor, torch.nn.Parameter)
_KNOWS_FRAMES = hasattr(eval_frame, "_FrameAction")  # not in PyTorch 2.6: there a call costs a microsecond more


def is_watched(x: Tensor) -> bool:
    """Whether torch operations on `x` are seen by a compiler, a dispatch mode or a subclass of Tensor.

    Such an observer sees operations only, and no memory that a kernel reads or writes.
    """
    return bool(type(x) not in PLAIN or torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling())


def is_plain(x: Tensor) -> bool:
    """Whether nothing but autograd follows a call with `x`, and no mode changes what an operation does.

    The modes are dispatch modes, transforms of functorch, tracing, inference mode and autocast.
    """
    return (
        type(x) in PLAIN
        and forward_ad._current_level < 0
        and not (
            torch._C._len_torch_dispatch_stack()
            or torch._C._are_functorch_transforms_active()
            or torch.is_inference_mode_enabled()
            or torch._C._is_any_autocast_enabled()
            or torch._C._get_tracing_state() is not None
        )
    )


def is_traced(x: Tensor, weights: tuple[Tensor, ...]) -> bool:
    """Whether a tracer, a functorch transform or forward mode follows a call with samples `x` and these weights."""
    if is_watched(x) or torch._C._are_functorch_transforms_active():
        return True
    return forward_ad._current_level >= 0 and has_tangent(x, *weights)


def has_tangent(*tensors: Tensor) -> bool:
    """Whether a tensor has a tangent of forward mode, also where only a compiled graph has entered its level."""
    return any(unpacked(tensor)[1] is not None for tensor in tensors)


def unpacked(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a tensor's value and its tangent in forward mode."""
    return torch._VF._unpack_dual(tensor, level=0)  # type: ignore[attr-defined]


def is_followed(g: Tensor) -> bool:
    """Whether a backward pass with the gradient `g` must consist of torch operations, because something follows it.

    Autograd, vmap, a tracer or forward mode may follow it. Kernels read memory, which a tensor of a class of its own,
    or of a dispatch mode, may not have.
    """
    return (
        torch.is_grad_enabled() or is_batched(g) or is_watched(g) or (forward_ad._current_level >= 0 and has_tangent(g))
    )


def is_batched(tensor: Tensor) -> bool:
    """Whether `tensor` stands for a batch of gradients (is_grads_batched) or lives inside a functorch transform."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(
        tensor
    )


def uncompiled(function: Any, reason: str | None = None) -> Any:
    """Keep a compiler away from `function` and all that it calls, and return `function`.

    The effect is that of torch.compiler.disable, but without a cost per call and without importing the compiler. A
    compiled caller breaks its graph at the call; with fullgraph=True the compiler raises and names the reason. It also
    stays away where it has given up the caller's frame; otherwise it would then compile what that frame calls, piece by
    piece.
    """
    if not _KNOWS_FRAMES:
        return torch.compiler.disable(function, recursive=True)
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, reason
    return function


def around_compiled(function: Any) -> Any:
    """Keep a compiler away from `function`, but not from what it calls, and return `function`.

    The effect is that of torch.compiler.disable(recursive=False), reached in the way of `uncompiled`.
    """
    if not _KNOWS_FRAMES:
        return torch.compiler.disable(function, recursive=False)
    action = eval_frame._FrameAction
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, None
    return function


def _keys(*names: str) -> Any:
    found = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        found = found.add(getattr(torch._C.DispatchKey, name))
    return found


# The dispatcher's state in a plain call: views are tracked, autocast is off.
_PLAIN_KEYS = (
    _keys("BackendSelect", "ADInplaceOrView"),
    _keys(*[name for name in torch._C.DispatchKey.__members__ if name.startswith("Autocast")]),
)


@contextmanager
def plainly() -> Iterator[None]:
    """Return a context in which operations run as in a plain call without gradients, whatever modes the caller is in.

    Kernels may be run inside a dispatch mode, as in the first call of a compiled graph: there autograd records nothing,
    and the lazy conjugate of a tensor would be taken for its plain value.
    """
    with (
        torch.inference_mode(False),
        torch._C._ForceDispatchKeyGuard(*_PLAIN_KEYS),
        torch.no_grad(),
    ):
        yield
