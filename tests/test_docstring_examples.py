"""Every public class and function has an example in its docstring, and what docstrings show is what happens.

An example is written as a reader has it on the screen: the names of `hpfracc_nn` and its subpackages (in files for JAX
those of `hpfracc_nn.jax`) and the usual `np`, `torch`, `jax`, `jnp`, ... are there. Where one name stands for several
things, it is what the module itself defines, else what its own subpackage offers, else what `hpfracc_nn` does. A number
is held against its value to the digits that are shown; a line whose result is not shown may return anything.
"""

import ast
import doctest
import importlib
import inspect
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.frameworks import is_there, needed

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = (
    *(
        "",
        ".fractional",
        ".layers",
        ".solvers",
        ".training",
        ".selection",
        ".preprocessing",
        ".analytics",
        ".data",
        ".series",
    ),
    ".jax",
)
USUAL = {
    "math": "math",
    "np": "numpy",
    "torch": "torch",
    "nn": "torch.nn",
    "lightning": "lightning",
    "jax": "jax",
    "jnp": "jax.numpy",
    "nnx": "flax.nnx",
    "linen": "flax.linen",
    "optax": "optax",
    "fnn": "hpfracc_nn",
    "hpfracc_nn": "hpfracc_nn",
    "fjx": "hpfracc_nn.jax",
}
FRAMEWORKS = ("torch", "jax")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?")


class Shown(doctest.OutputChecker):
    """Numbers agree to the digits that are shown; what shows no result accepts any."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if not want:
            return True
        wanted, given = NUMBER.findall(want), NUMBER.findall(got)
        if len(wanted) != len(given) or not all(map(agree, wanted, given)):
            return super().check_output(want, got, optionflags)
        return super().check_output(NUMBER.sub("0.0", want), NUMBER.sub("0.0", got), optionflags)


def agree(wanted: str, given: str) -> bool:
    """Return whether a number is another one, rounded to as many digits as that shows."""
    digits, _, exponent = wanted.lower().partition("e")
    last = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return math.isclose(float(wanted), float(given), rel_tol=0, abs_tol=0.51 * last)


def names(package: str) -> list[str]:
    found: list[str] = importlib.import_module(f"hpfracc_nn{package}").__all__
    return found


def public() -> Iterator[tuple[str, str]]:
    """Yield package and name of every public class and function; values, as a registry, have no docstring."""
    for package in PACKAGES:
        if package == ".jax" and not is_there("jax"):
            continue
        yield from ((f"hpfracc_nn{package}", name) for name in names(package))


def files() -> list[str]:
    """Return the modules whose docstrings show something and that can be imported here."""
    found = []
    for path in sorted((ROOT / "hpfracc_nn").rglob("*.py")):
        if ">>> " in path.read_text("utf-8") and all(map(is_there, needed(path))):
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return found


def on_the_screen(module: str) -> dict[str, Any]:
    """Return the names that an example of the module may use without an import."""
    loaded, found = importlib.import_module(module), {}
    is_for_jax = {"jax", "flax"} & set(module.split("."))
    rooms = ["hpfracc_nn.jax"] if is_for_jax else [f"hpfracc_nn{each}" for each in reversed(PACKAGES[:-1])]
    for room in (*rooms, *([] if is_for_jax else [".".join(module.split(".")[:2])])):
        home_of = importlib.import_module(room)
        for name in getattr(home_of, "__all__", ()):
            try:
                found[name] = getattr(home_of, name)
            except ImportError:  # of an extra that is not installed
                continue
    for name, home in USUAL.items():  # last: `nnx` and `linen` are Flax's, and ours are `fjx.nnx` and `fjx.linen`
        if is_there(home.split(".")[0]) and (home != "hpfracc_nn.jax" or is_there("jax")):
            found[name] = importlib.import_module(home)
    own = {name: value for name, value in vars(loaded).items() if getattr(value, "__module__", None) == module}
    return {**vars(loaded), **found, **own}


def examples(module: str) -> list[doctest.DocTest]:
    """Return what the docstrings of a module show, of private names as well, as far as its frameworks are there."""
    loaded = importlib.import_module(module)
    known = on_the_screen(module)
    parser, path = doctest.DocTestParser(), pathlib.Path(inspect.getsourcefile(loaded) or "")
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ">>> " in (ast.get_docstring(node) or ""):
            name, text = getattr(node, "name", module), ast.get_docstring(node) or ""
            found.append(parser.get_doctest(text, dict(known), name, str(path), getattr(node, "lineno", 1)))
    return [each for each in found if all(is_there(name) for name in FRAMEWORKS if shows(each, name))]


def shows(example: doctest.DocTest, framework: str) -> bool:
    return any(re.search(rf"\b{framework}\b", line.source) for line in example.examples)


@pytest.mark.parametrize(("package", "name"), list(public()))
def test_a_public_name_has_an_example(package, name):
    try:
        value = getattr(importlib.import_module(package), name)
    except ImportError:
        pytest.skip(f"{name} is of an extra that is not installed")
    if inspect.isclass(value) or inspect.isfunction(value):
        assert ">>> " in (value.__doc__ or ""), f"{package}.{name}: give its docstring an example that runs"


@pytest.mark.slow
@pytest.mark.parametrize("module", files())
def test_what_a_docstring_shows_happens(module, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")  # nothing is sent, and the process gets no provider
    runner = doctest.DocTestRunner(Shown(), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    told: list[str] = []
    for example in examples(module):
        if is_there("torch"):
            importlib.import_module("torch").manual_seed(0)
        runner.run(example, out=told.append)
    assert runner.failures == 0, "".join(told)
