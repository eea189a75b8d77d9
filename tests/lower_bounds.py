"""Print the lower bounds of pyproject.toml, of some extras, as constraints for pip.

Run:  python tests/lower_bounds.py torch jax numba ...
"""

import pathlib
import re
import sys
import tomllib

PROJECT = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]


def bounds(*extras: str) -> list[str]:
    """Return a line `name==version` for each package that the extras need: the highest of its lower bounds."""
    lines, seen = list(PROJECT["dependencies"]), set(extras)
    waiting = list(extras)
    while waiting:
        for line in PROJECT["optional-dependencies"][waiting.pop()]:
            own = re.fullmatch(rf"{PROJECT['name']}\[(.*)\]", line)
            if own:
                waiting += set(own[1].split(",")) - seen
                seen |= set(waiting)
            else:
                lines.append(line)
    highest: dict[str, list[int]] = {}
    for line in lines:
        name, bound = re.sub(r"\[.*\]", "", line).split(">=")
        highest[name] = max(highest.get(name, []), [int(number) for number in bound.split(".")])
    return sorted(f"{name}=={'.'.join(map(str, bound))}" for name, bound in highest.items())


if __name__ == "__main__":
    print("\n".join(bounds(*sys.argv[1:])))  # noqa: T201
