"""The public names, those that the reference describes, and the list of them that a release promises.

Run:  python tests/public_names.py    writes the list anew, after names were added or a deprecated one has gone
"""

import ast
import pathlib
import re

from hpfracc_nn import lazy

ROOT = pathlib.Path(__file__).parents[1]
LIST = ROOT / "tests" / "reference" / "public_names.txt"


def public_names() -> set[str]:
    """Return the dotted names of the package and of all that the reference pages describe."""
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    places = ["hpfracc_nn", *re.findall(r"^::: (\S+)$", pages, re.MULTILINE)]
    return {f"{place}.{name}" for place in places for name in names_of(place)}


def names_of(place: str) -> set[str]:
    """Return what a package or module exports: its `__all__`, what it loads lazily, or its own public names."""
    path = ROOT.joinpath(*place.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    if path.is_dir():
        return set(lazy.exports(place))
    named = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {name for name in named if not name.startswith("_")}


def removed(names: set[str]) -> list[str]:
    """Return what the committed list has and `names` have not."""
    return sorted(set(LIST.read_text("utf-8").split()) - names)


if __name__ == "__main__":
    LIST.write_text("\n".join(sorted(public_names())) + "\n", "utf-8")
