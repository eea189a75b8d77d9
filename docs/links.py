"""Links from the pages to the reference: a hook of MkDocs.

In each section the first mention of a public name as code, with or without arguments,
leads to where it is described. The pages for JAX mean its names, and the one on models
those of models.
"""

import ast
import pathlib
import re

from hpfracc_nn import lazy

PACKAGE = pathlib.Path(__file__).parents[1] / "hpfracc_nn"
ROOMS = (
    *("fractional", "layers", "solvers", "training", "selection"),
    *("preprocessing", "analytics", "data"),
)
MODELS = ("models", "models.rheology", "models.impedance")
# What is kept as it is: headings, blocks, and what is a link already. A heading of the
# first or second rank begins a section.
PARTS = re.compile(
    r"<(h[1-6]|pre|a)\b.*?</\1>"
    r"|<code>(?:\w+=)?(?P<ours>(?:fnn|fjx|hpfracc_nn)\.(?:\w+\.)*)?"
    r"(?P<name>[A-Za-z]\w+)(?P<call>(?!\.py)[(.\[][^<]*)?</code>",
    re.DOTALL,
)
# Where other libraries have the same names, ours come with their package.
OTHERS = {"migration.md"}


def public(room: str) -> dict[str, str]:
    """Return the public names of a package, and how the reference calls each."""
    names = lazy.exports(f"hpfracc_nn.{room}") or written(room)
    return {name: f"hpfracc_nn.{room}.{name}" for name in names}


def written(room: str) -> list[str]:
    """Return the names of a package or module: its `__all__`, or its classes."""
    place = PACKAGE.joinpath(*room.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(file.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return [name for name in classes if not name.startswith("_")]


def on_page_content(html, page, **_):
    """Link the names of a page that is not of the reference."""
    if page.file.src_uri.startswith("reference/"):
        return html
    known = {
        name: path for room in reversed(ROOMS) for name, path in public(room).items()
    }
    if page.file.src_uri.startswith("jax"):
        known |= public("jax")
    if page.file.src_uri == "models.md":
        for room in MODELS:
            known |= public(room)
    linked = set()

    def with_link(part: re.Match[str]) -> str:
        name = part["name"]
        if part[1] in ("h1", "h2"):
            linked.clear()
        # A word in small letters is a name only where it is called.
        is_called = part["ours"] or (part["call"] or "").startswith("(")
        is_word = name and name.islower() and not is_called
        is_another = page.file.src_uri in OTHERS and not part["ours"]
        if name not in known or name in linked or is_word or is_another:
            return part[0]
        linked.add(name)
        return f'<autoref identifier="{known[name]}" optional>{part[0]}</autoref>'

    return PARTS.sub(with_link, html)
