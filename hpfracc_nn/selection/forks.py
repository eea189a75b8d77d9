"""What a forked child makes anew, since a thread that the child does not have may hold a lock or be half way."""

import os
from collections.abc import Callable


def in_children(renew: Callable[[], None]) -> Callable[[], None]:
    """Call `renew` in every child process that is forked from now on, and return it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return renew
