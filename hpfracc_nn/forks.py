"""Hooks around a fork: the child has only the thread that forked, and another one may have held a lock."""

import os
from collections.abc import Callable


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register hooks of `os.register_at_fork` where processes can fork; elsewhere do nothing.

    Args:
        hooks: `before` (the last registered first), `after_in_parent`, `after_in_child`.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def in_children(renew: Callable[[], None]) -> Callable[[], None]:
    """Call `renew` in every child process that is forked from now on, and return it."""
    at_fork(after_in_child=renew)
    return renew
