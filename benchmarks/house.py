"""How large the package is, what imports what in a circle, and how much code one warm call runs through.

    python benchmarks/house.py [--before DIR] [--output DIR]

Files and lines of code (blanks, comments and docstrings left out) by folder, circles of imports (those inside of
functions and under `TYPE_CHECKING` counted), functions whose body has more than 60 lines of code, and for five warm
calls the package's files whose code runs and the calls of the package's functions. Comprehensions are no calls, and a
generator counts each time it goes on. What is called by the package but written by the user, f of a solver, is no code
of the package and is not counted. `--before` is the package's folder in another checkout, to compare with.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from results import Table

PACKAGE = Path(__file__).parents[1] / "hpfracc_nn"
LONGEST = 60  # lines of code of a function's body
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef

# Each is run in a child process, fifty times unseen and then twenty-five times, of which the middle one counts: now and
# then a call tries another kernel or saves what was learnt.
CALLS = {
    "FractionalLayer(0.6), (8, 3, 256)": """
layer, x = hpfracc_nn.FractionalLayer(0.6), torch.randn(8, 3, 256)
def call():
    return layer(x)
""",
    "FractionalLayer(0.6, learn_alpha=True), (8, 3, 256)": """
layer, x = hpfracc_nn.FractionalLayer(0.6, learn_alpha=True), torch.randn(8, 3, 256)
def call():
    return layer(x)
""",
    "fdeint, 50 steps": """
a, y0, ts = torch.nn.Parameter(torch.tensor(-1.0)), torch.ones(8, 3), torch.linspace(0, 1, 51)
def f(t, y):
    return a * y
def call():
    return hpfracc_nn.fdeint(f, y0, ts, 0.6)
""",
    "fsdeint, 50 steps, alpha 1": """
a, y0, ts = torch.nn.Parameter(torch.tensor(-1.0)), torch.ones(8, 3), torch.linspace(0, 1, 51)
sde, generator = hpfracc_nn.SDE(lambda t, y: a * y, lambda t, y: 0.1 * y), torch.Generator().manual_seed(0)
def call():
    return hpfracc_nn.fsdeint(sde, y0, ts, generator=generator)
""",
    "FractionalLSTM, 20 steps": """
layer, x = hpfracc_nn.FractionalLSTM(3, 8), torch.randn(20, 8, 3)
def call():
    return layer(x)
""",
}
_RUN = """
import collections, json, sys, warnings
warnings.simplefilter("ignore")
import torch, hpfracc_nn
torch.set_num_threads(1)
PACKAGE, PROGRAM = sys.argv[1:3]
WARM, CALLS, COMPREHENSIONS = 50, 25, {"<listcomp>", "<setcomp>", "<dictcomp>"}
exec(PROGRAM)
counts = []
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS:
        counts[-1][code.co_filename] += 1
for _ in range(WARM):
    call()
for _ in range(CALLS):
    counts.append(collections.Counter())
    sys.setprofile(profile)
    call()
    sys.setprofile(None)
middle = sorted(counts, key=lambda each: each.total())[CALLS // 2]
print(json.dumps({"files": len(middle), "calls": middle.total(), "where": middle}))
"""


def sources(package: Path = PACKAGE) -> dict[str, str]:
    """Return the text of every file of the package, by its path below the folder."""
    return {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that hold code: no blanks, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | _Function) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def long_functions(text: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return (where, lines of code of the body) of each function with more than `LONGEST`, the longest first."""
    found = []
    for path, source in text.items():
        functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, _Function))
        bodies = {node: range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1) for node in functions}
        long = {node: body for node, body in bodies.items() if len(body) > LONGEST}
        code = code_lines(source) if long else set()
        found += [(f"{path}:{node.lineno} {node.name}", len(code.intersection(body))) for node, body in long.items()]
    return sorted((each for each in found if each[1] > LONGEST), key=lambda each: -each[1])


def imports(text: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, at any depth of its text.

    A name that is imported from a package's face, which loads it when it is first asked for, is an import of the module
    that the face takes it from. An import of a package runs that package's `__init__` and is one of it.
    """
    modules = {module_name(path): path for path in text}
    trees = {module: ast.parse(text[path]) for module, path in modules.items()}
    faces = {
        module: {alias.asname or alias.name: home for home, alias in _names(module, path, _late(trees[module]))}
        for module, path in modules.items()
        if path.endswith("__init__.py")
    }

    def home(module: str, name: str) -> str:
        if f"{module}.{name}" in modules:
            return f"{module}.{name}"
        origin = faces.get(module, {}).get(name)
        return home(origin, name) if origin in modules and origin != module else module

    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.walk(trees[module]):
            if isinstance(node, ast.Import):
                graph[module].update(alias.name for alias in node.names if alias.name in modules)
        for origin, alias in _names(module, path, ast.walk(trees[module])):
            if origin in modules:
                graph[module].add(home(origin, alias.name))
        graph[module].discard(module)
    return graph


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other by some way, the largest first (Tarjan, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(members) > 1:
                found.append(sorted(members))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10 * len(graph) + 1000))
    try:
        for module in graph:
            if module not in order:
                visit(module)
    finally:
        sys.setrecursionlimit(limit)
    return sorted(found, key=lambda members: (-len(members), members))


def warm_call(program: str, package: Path = PACKAGE) -> dict[str, object]:
    """Return how many files and calls of functions of the package one warm call runs through."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "HPFRACC_NN_WISDOM": "off", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _RUN, str(package), program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package.parent, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def size(packages: Mapping[str, Path]) -> Table:
    """Return the table of files and lines of code, with circles and long functions of each copy below it."""
    columns = {"folder": ("folder", "")}
    for name in packages:
        columns |= {f"files {name}": (f"files {name}", ",d"), f"lines {name}": (f"lines of code {name}", ",d")}
    caption = "Python files of the package and their lines of code, without blanks, comments and docstrings."
    table = Table("house", caption, columns)
    texts = {name: sources(package) for name, package in packages.items()}
    lines = {name: {path: len(code_lines(source)) for path, source in text.items()} for name, text in texts.items()}
    folders = {path.split("/")[0] for text in texts.values() for path in text if "/" in path}
    table.begin("size")
    for folder in [*sorted(folders), ""]:
        record: dict[str, object] = {"folder": folder or "the package"}
        for name, counts in lines.items():
            inside = [count for path, count in counts.items() if not folder or path.startswith(f"{folder}/")]
            record |= {f"files {name}": len(inside), f"lines {name}": sum(inside)}
        table.add(**record)
    for name, text in texts.items():
        found = circles(imports(text))
        sizes = ", ".join(str(len(members)) for members in found) or "none"
        table.note(f"Circles of imports, by their files, {name}: {sizes}.")
        functions = [f"`{where}` {count}" for where, count in long_functions(text)]
        table.note(f"Functions with more than {LONGEST} lines of code, {name}: {', '.join(functions) or 'none'}.")
    for members in found:
        table.note("A circle now: " + ", ".join(f"`{member.removeprefix('hpfracc_nn.')}`" for member in members) + ".")
    return table


def calls(packages: Mapping[str, Path]) -> Table:
    """Return the table of warm calls."""
    columns = {"call": ("warm call", "")}
    for name in packages:
        columns |= {f"files {name}": (f"files {name}", "d"), f"calls {name}": (f"calls of functions {name}", "d")}
    table = Table("house-calls", "What one warm eager call on PyTorch runs through, in the package.", columns)
    table.begin("calls")
    for call, program in CALLS.items():
        record: dict[str, object] = {"call": call}
        for name, package in packages.items():
            found = warm_call(program, package)
            record |= {f"files {name}": found["files"], f"calls {name}": found["calls"]}
        table.add(**record)
    return table


def module_name(path: str) -> str:
    """Return the dotted name of a file of the package."""
    parts = ["hpfracc_nn", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names(module: str, path: str, nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.alias]]:
    """Yield (module, name) of each `from module import name` among some nodes."""
    package = module.split(".") if path.endswith("__init__.py") else module.split(".")[:-1]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield stem, alias


def _late(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what stands under `if TYPE_CHECKING:` of a file."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for each in node.body:
                yield from ast.walk(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the package's folder in another checkout")
    parser.add_argument("--quick", action="store_true", help="as without it: this takes less than a minute")
    parser.add_argument("--output", type=Path, help="also write the tables into this folder")
    arguments = parser.parse_args()
    packages = {"before": arguments.before.resolve(), "now": PACKAGE} if arguments.before else {"now": PACKAGE}
    for table in (size(packages), calls(packages)):
        if arguments.output:
            table.write(arguments.output)


if __name__ == "__main__":
    main()
