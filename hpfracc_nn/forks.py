"""Hooks around a fork: the child has only the thread that forked, and another thread may have held a lock."""

import os
from collections.abc import Callable


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register hooks of `os.register_at_fork` where processes can fork; elsewhere do nothing.

    Args:
        hooks: Functions without arguments: `before` (the last registered runs first), `after_in_parent`,
            `after_in_child`.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


def in_children(renew: Callable[[], None]) -> Callable[[], None]:
    """Register `renew` to run in every child process that is forked from now on, and return `renew`: a decorator."""
    at_fork(after_in_child=renew)
    return renew
