"""One valid call of every public constructor, for `test_constructor_fuzz.py`: a file for each room.

A file in this folder is found by itself. It holds `CASES`, a list of `Call`.
"""

import importlib
import inspect
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.frameworks import is_there, needed

HERE = pathlib.Path(__file__).parent


@dataclass(frozen=True, eq=False)
class Call:
    """A constructor with arguments that it takes.

    Args:
        made: The class or function.
        given: Returns its valid arguments by name; positional ones stand under the name of their parameter.
        use: One tiny call of what was made, or nothing.
        theirs: Arguments that are handed on as they are to torch, optax or Flax, which answer in their own words.
        name: What it is called in reports; the constructor's own name if empty.
        slow: Whether one construction takes more than some milliseconds.
    """

    made: Callable[..., Any]
    given: Callable[[], Mapping[str, Any]] = dict
    use: Callable[[Any], Any] | None = None
    theirs: frozenset[str] = field(default_factory=frozenset)
    name: str = ""
    slow: bool = False

    @property
    def id(self) -> str:
        return self.name or f"{self.made.__module__.removeprefix('hpfracc_nn.')}.{self.made.__qualname__}"

    @property
    def arguments(self) -> list[str]:
        """The names of what may be given, but for those that are theirs."""
        parameters = inspect.signature(self.made).parameters.values()
        named = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        return [name for name in dict.fromkeys([*named, *self.given()]) if name not in self.theirs]


def every_call() -> list[Call]:
    """Return the calls of all files."""
    files = [path for path in sorted(HERE.glob("[a-z]*.py")) if all(map(is_there, needed(path)))]
    return [call for path in files for call in importlib.import_module(f"{__name__}.{path.stem}").CASES]
