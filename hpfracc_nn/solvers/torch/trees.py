"""States that are trees of tensors, or complex, as the tuples of real tensors that solvers work with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def is_plain(y0: Any) -> bool:
    """Return whether a state is what solvers work with: a real tensor, or a tuple or list of such."""
    if isinstance(y0, Tensor):
        return not y0.is_complex()
    if type(y0) not in (tuple, list):
        return not isinstance(y0, tuple | list | dict)  # what is no tree is refused
    return not any(isinstance(each, tuple | list | dict) or _is_complex(each) for each in y0)


def _is_complex(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_complex()


class Form:
    """How a state is made of real tensors: a complex one is its real and imaginary part, in a last axis of 2.

    Args:
        y0: The state at the start.
    """

    def __init__(self, y0: Any):
        leaves, self._tree = pytree.tree_flatten(y0)
        self._are_complex = [_is_complex(each) for each in leaves]
        self._is_one = isinstance(y0, Tensor)

    def parts(self, y: Any, owner: str, name: str) -> Any:
        """Return a tree as real tensors: one, or a tuple of them.

        Raises:
            TypeError: It is another tree than the state at the start, or another of its tensors is complex.
        """
        leaves, tree = pytree.tree_flatten(y)
        if tree != self._tree:
            raise TypeError(
                f"{owner}({name}): needs a tree like y0, {self._tree}; it is {tree}; return the same containers."
            )
        kinds = [_is_complex(each) for each in leaves]
        if kinds != self._are_complex:
            raise TypeError(
                f"{owner}({name}): needs complex tensors where those of y0 are complex, and only there; make them so "
                "by torch.complex or .real."
            )
        real = tuple(
            torch.view_as_real(each.resolve_conj()) if is_complex else each
            for each, is_complex in zip(leaves, kinds, strict=True)
        )
        return real[0] if self._is_one else real

    def tree(self, y: Any) -> Any:
        """Return real tensors, with more axes in front or without, as the tree."""
        parts = (y,) if isinstance(y, Tensor) else y
        leaves = [
            torch.view_as_complex(each.contiguous()) if is_complex else each
            for each, is_complex in zip(parts, self._are_complex, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self._tree)

    def right_hand_side(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return f(t, y) of trees as a function of real tensors."""
        return partial(_applied, f, self)

    def function(self, g: Callable[..., Any]) -> Callable[..., Any]:
        """Return g(t, y) of trees as a function of real tensors, which returns what g does."""
        return partial(_read, g, self)


def _applied(f: Callable[..., Any], form: Form, t: Tensor, y: Any) -> Any:
    return form.parts(f(t, form.tree(y)), "fdeint", "f")


def _read(g: Callable[..., Any], form: Form, t: Tensor, y: Any) -> Any:
    return g(t, form.tree(y))
