"""The names that packages export which load them when they are first used.

An extension of Griffe, which reads `__all__` where it is written out. Here it follows
from the imports below `if TYPE_CHECKING:`, see `hpfracc_nn/lazy.py`.
"""

from __future__ import annotations

from typing import Any

import griffe
from griffe import Alias, Module

from hpfracc_nn import lazy


class Exports(griffe.Extension):
    """Gives packages that load their names lazily `__all__`, and what stars bring."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for module in [pkg, *below(pkg)]:
            attached = getattr(module.members.get("lazy"), "target_path", "")
            names = lazy.exports(module.path) if attached == lazy.__name__ else {}
            for name, (home, original) in names.items():
                if name not in module.members:
                    module.set_member(name, Alias(name, f"{home}.{original}"))
            if names:
                module.exports = set(names)


def below(module: Module) -> list[Module]:
    """Return the modules of a package, and those below them."""
    members = [member for member in module.members.values() if not member.is_alias]
    found = [member for member in members if isinstance(member, Module)]
    return [*found, *(each for member in found for each in below(member))]
