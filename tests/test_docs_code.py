"""The Python blocks of a page of the documentation run, one after another, as a reader runs them down the page.

A block may use what earlier blocks of its page have made. What a comment at the end of a line says in numbers is held
against the value: of an expression `# (4, 16)`, of a name that is given a value its shape, `# [4, 16]`. The block of
text that follows a block of code is what that prints: word for word but for blanks, `...` stands for anything, and
numbers are right to a thousandth. On the pages that a newcomer reads first, what prints shows what it prints.
"""

import ast
import builtins
import contextlib
import importlib.util
import io
import math
import pathlib
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hpfracc_nn import lazy

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
    "docs/index.md",
    "docs/tour.md",
    "docs/quickstarts.md",
    "docs/operators.md",
    "docs/series.md",
    "docs/differencing.md",
    "docs/scale.md",
    "docs/migration.md",
    "docs/models.md",
    "docs/jax.md",
    "docs/jax_layers.md",
    "docs/jax_recurrent.md",
    "docs/jax_blocks.md",
    "docs/jax_solvers.md",
    "docs/jax_sde.md",
    "docs/jax_optimizers.md",
]
FIRST_READ = ["docs/index.md", "docs/tour.md", "docs/quickstarts.md", "docs/operators.md", "docs/series.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n``` ?\{ \.text \.no-copy \}\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*[A-Za-z_])")
NUMBERS = re.compile(r"#\s*([\[(][\d, ]*[\])])\s*(?:,.*)?$")
PACKAGES = {"hpfracc_nn", "__future__"}


@dataclass(frozen=True)
class Block:
    """A block of a page: where it stands, and its text with as many lines before it as there are on the page."""

    page: str
    line: int
    text: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def source(self) -> str:
        return "\n" * (self.line - 1) + self.text


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text("utf-8")
    return [Block(page, text.count("\n", 0, found.start(1)) + 1, *found.groups()) for found in BLOCK.finditer(text)]


def imported(block: Block) -> set[str]:
    """Return the packages that a block imports."""
    names = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return {name.split(".")[0] for name in names} - PACKAGES


def used(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that a block reads and no function of it has for itself."""
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_module or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from used(inner)


def made(table: symtable.SymbolTable) -> set[str]:
    return {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}


@pytest.mark.parametrize("page", PAGES)
def test_every_name_is_made_on_the_page(page):
    known = {*dir(builtins), "__annotations__"}
    assert blocks(page)
    for block in blocks(page):
        table = symtable.symtable(block.text, str(block), "exec")
        known |= made(table)
        assert sorted(set(used(table)) - known) == [], str(block)


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")))
def test_a_page_names_what_is_there(page):
    names = {"fnn": lazy.exports("hpfracc_nn"), "fjx": lazy.exports("hpfracc_nn.jax")}  # frameworks may be absent
    said = re.findall(r"\b(fnn|fjx)\.(\w+)", (ROOT / page).read_text("utf-8"))
    assert [f"{home}.{name}" for home, name in said if name not in names[home]] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        missing = sorted(name for name in imported(block) if importlib.util.find_spec(name) is None)
        if missing:
            pytest.skip(f"{block} needs {', '.join(missing)}")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run(block, names)
        if block.output is not None:
            assert is_as_shown(block.output, printed.getvalue()), f"{block} prints\n{printed.getvalue()}"


@pytest.mark.parametrize("page", FIRST_READ)
def test_what_prints_shows_what_it_prints(page):
    text = (ROOT / page).read_text("utf-8")
    for found in BLOCK.finditer(text):
        # What another machine prints otherwise stands below a sentence, and is not compared.
        is_shown = found[2] or re.match(r"\n[^`#\n]+:\n\n``` \{ \.text", text[found.end() :])
        assert "print(" not in found[1] or is_shown, found[1]


def test_a_difference_from_the_shown_output_is_seen():
    shown = "alpha  0.603 in [0.58, -1e-3] ...\nresidual 0.0161 over 40"
    assert is_as_shown(shown, "alpha 0.6030 in [0.58, -0.001] of\n3 things\n residual 0.016101 over 40\n")
    assert not is_as_shown(shown, "alpha 0.605 in [0.58, -0.001] of\nresidual 0.0161 over 40\n")
    assert not is_as_shown(shown, "beta 0.603 in [0.58, -0.001] of\nresidual 0.0161 over 40\n")
    assert not is_as_shown(shown, "alpha 0.603 in [0.58, 0.001] of\nresidual 0.0161 over 40\n")
    assert not is_as_shown("1.4076", "1.4076 2")


def is_as_shown(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed: words, and numbers to a thousandth or their last shown digit."""
    parts, numbers = NUMBER.split(shown), NUMBER.findall(shown)
    words = [
        r"\s+".join(re.escape(word).replace(r"\.\.\.", ".*?") for word in re.split(r"\s+", part)) for part in parts
    ]
    pattern = rf"\s*{f'({NUMBER.pattern})'.join(words)}\s*"
    found = re.fullmatch(pattern, printed, re.DOTALL)
    return found is not None and all(
        math.isclose(float(one), float(other), rel_tol=1e-3, abs_tol=1e-12)
        for one, other in zip(numbers, found.groups(), strict=True)
    )


def run(block: Block, names: dict[str, Any]) -> None:
    """Run a block, one statement after another."""
    lines = block.source.splitlines()
    for statement in ast.parse(block.source, str(ROOT / block.page)).body:
        said = NUMBERS.search(lines[(statement.end_lineno or statement.lineno) - 1])
        where = f"{block.page}:{statement.lineno}"
        if isinstance(statement, ast.Expr):
            code = compile(ast.Expression(statement.value), str(ROOT / block.page), "eval")
            value = eval(code, names)
            if said and said[1].startswith("("):
                assert value == ast.literal_eval(said[1]), where
            continue
        exec(compile(ast.Module([statement], []), str(ROOT / block.page), "exec"), names)
        if said and said[1].startswith("[") and isinstance(statement, ast.Assign):
            assert isinstance(statement.targets[0], ast.Name), where
            assert list(names[statement.targets[0].id].shape) == ast.literal_eval(said[1]), where
