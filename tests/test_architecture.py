"""Who may import whom, that no imports form a circle, what an import may load, and how long a function may be.

The tables are the architecture's rules; each rule is also run on a source that breaks it.
"""

import ast
import fnmatch
import functools
import importlib.util
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "hpfracc_nn"
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

# Package -> the packages it may import besides itself, each the first part of the path below hpfracc_nn;
# "" is hpfracc_nn/__init__.py.
ARROWS = {
    "errors": set(),
    "forks": set(),
    "lazy": set(),
    "installed": set(),
    "selection": {"errors", "forks"},
    "labelled": {"errors"},
    "fractional": {"errors", "forks", "labelled", "lazy", "selection"},
    "solvers": {"errors", "lazy", "selection", "fractional"},
    "distributed": {"errors", "lazy", "selection", "fractional"},
    "analytics": {"errors", "lazy", "selection"},
    "series": {"errors", "labelled", "lazy", "fractional"},
    "layers": {
        "errors",
        "lazy",
        "selection",
        "fractional",
        "series",
        "solvers",
        "distributed",
    },  # a block is a memory equation, solved
    "training": {"errors", "lazy", "selection", "fractional", "layers", "solvers", "analytics"},
    "models": {"errors", "lazy", "fractional", "layers", "training"},
    "preprocessing": {"errors", "labelled", "lazy", "fractional"},
    "data": {"", "errors", "lazy", "selection", "fractional", "layers", "series", "solvers", "training"},
    "commands": {"", "analytics", "errors", "selection", "fractional", "models", "training", "data"},
    "cli": {"commands"},
    "__main__": {"cli"},
    "jax": {"errors", "lazy", "selection", "fractional", "distributed", "layers", "solvers", "training", "data"},
    "": {
        "errors",
        "installed",
        "lazy",
        "selection",
        "analytics",
        "fractional",
        "distributed",
        "series",
        "layers",
        "models",
        "solvers",
        "training",
        "preprocessing",
        "data",
    },
}

# Third party -> the files that may import it, also inside a function. `*` crosses folders.
HANDED_TO_JAX = "*/torch/*kernels/xla*.py"  # what hands a torch tensor to XLA computes with JAX's own products
JAX_FILES = ("jax/*", "*/jax/*", "*/jax.py", "flax/*", "*/flax/*", "*/flax.py")
TOPS = ("data/*", "training/*")
THIRD_PARTY = {
    "numpy": ("*",),
    "scipy": ("fractional/*", "series/*", "layers/*", "models/*", "solvers/*", "training/*", "data/*"),
    "filelock": ("selection/*",),
    "platformdirs": ("selection/*",),
    "opentelemetry": ("selection/observe/telemetry.py",),
    "pynvml": ("selection/learning/fingerprint.py",),
    "torch": ("torch/*", "*/torch/*", "*/torch.py"),
    "jax": (*JAX_FILES, HANDED_TO_JAX),
    "jaxlib": JAX_FILES,
    "flax": JAX_FILES,
    "optax": JAX_FILES,
    "numba": ("*/torch/*kernels/numba_*.py", "fractional/numba/*"),
    "llvmlite": ("fractional/numba/*",),
    "cupy": ("*/torch/*kernels/cuda_*.py", "fractional/torch/cupy_arrays.py"),
    "triton": ("*/torch/*kernels/triton_*.py",),
    "lightning": ("training/*",),
    "typer": ("commands.py",),
    "rich": ("commands.py", "training/*"),
    "matplotlib": (*TOPS, "analytics/*", "models/figures.py"),
    "pandas": (*TOPS, "analytics/*", "series/*"),
    "arch": TOPS,
    "statsmodels": TOPS,
    "sklearn": ("preprocessing/*",),
}

BROAD_EXCEPT = {
    "errors.py",  # around an exception's own methods, which may be broken
    "selection/fallback.py",  # around a kernel's run, after the input was checked
    "selection/recorder.py",  # what telemetry raises is logged, and the call that it hears of goes on
    "selection/registry.py",  # what a kernel raises where it is asked something is given its name, and raised
    "fractional/numba/threads.py",  # what a thread raises is raised where the work was asked for
}

# Framework -> what its modules must not load. "" are the modules that belong to no framework.
KEPT_OUT = {
    "torch": ("jax", "flax", "optax", "numba", "cupy"),
    "jax": ("torch", "numba", "cupy"),
    "numba": ("torch", "jax", "flax", "optax", "cupy", "lightning"),
    "": ("torch", "jax", "flax", "optax", "numba", "cupy", "lightning"),
}
KEPT_OUT_OF_IMPORT = (*KEPT_OUT[""], "scipy", "pandas", "matplotlib", "arch", "statsmodels", "sklearn", "rich", "typer")


def module_name(path: str) -> str:
    parts = ["hpfracc_nn", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """Return the room of one of our modules; a name that is no room is taken from the root's own names."""
    first = [*module.split("."), ""][1]
    return first if first in ARROWS else ""


def framework(module: str) -> str:
    parts = module.split(".")[1:]
    if "torch" in parts:
        return "torch"
    if "numba" in parts:
        return "numba"
    return "jax" if {"jax", "flax"} & set(parts) else ""


parsed = functools.cache(ast.parse)


def imports(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, at any depth; `from a import b` yields a.b."""
    package = module_name(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{stem}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def forbidden_imports(path: str, source: str) -> list[str]:
    here = module_name(path)
    if path.split("/")[0].removesuffix(".py") not in {*ARROWS, "__init__"}:
        return [f"{path}: no such room in ARROWS"]
    faults = []
    for line, name in imports(path, source):
        top = name.split(".")[0]
        if top == "hpfracc_nn":
            if room(name) not in {room(here), *ARROWS[room(here)]}:
                faults.append(f"{path}:{line}: {room(here) or 'hpfracc_nn'} must not import {name}")
            if {framework(here), framework(name)} == {"torch", "jax"} and not fnmatch.fnmatchcase(path, HANDED_TO_JAX):
                faults.append(f"{path}:{line}: a {framework(here)} module must not import {name}")
        elif top not in sys.stdlib_module_names:
            allowed = THIRD_PARTY.get(top, ())
            if not any(fnmatch.fnmatchcase(path, pattern) for pattern in allowed):
                faults.append(f"{path}:{line}: {top} may be imported only by {', '.join(allowed) or 'nobody'}")
    return faults


def broad_excepts(path: str, source: str) -> list[str]:
    def is_broad(node: ast.expr | None) -> bool:
        if isinstance(node, ast.Tuple):
            return any(is_broad(element) for element in node.elts)
        return node is None or (isinstance(node, ast.Name) and node.id in {"Exception", "BaseException"})

    faults = []
    for node in ast.walk(parsed(source)):
        handler = isinstance(node, ast.ExceptHandler) and is_broad(node.type)
        suppress = (
            isinstance(node, ast.Call)
            and (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) == "suppress"
            and any(is_broad(argument) for argument in node.args)
        )
        if (handler or suppress) and path not in BROAD_EXCEPT:
            faults.append(f"{path}:{node.lineno}: name the exceptions")  # type: ignore[attr-defined]
    return faults


RULES = [forbidden_imports, broad_excepts]


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule):
    assert [fault for path, file in FILES.items() for fault in rule(path, file.read_text("utf-8"))] == []


BREAKS = [
    (forbidden_imports, "errors.py", "from hpfracc_nn import selection"),
    (forbidden_imports, "selection/manager.py", "import hpfracc_nn.fractional.stencil"),
    (forbidden_imports, "selection/manager.py", "from ..fractional import stencil"),
    (forbidden_imports, "selection/manager.py", "from hpfracc_nn import Caputo"),
    (forbidden_imports, "selection/manager.py", "import scipy"),
    (forbidden_imports, "selection/manager.py", "from hpfracc_nn import analytics"),
    (forbidden_imports, "selection/manager.py", "import matplotlib"),
    (forbidden_imports, "analytics/figures.py", "from hpfracc_nn.training import table"),
    (forbidden_imports, "selection/manager.py", "from opentelemetry import trace"),
    (forbidden_imports, "selection/manager.py", "import pynvml"),
    (forbidden_imports, "fractional/stencil.py", "from hpfracc_nn.layers.torch import fractional"),
    (forbidden_imports, "fractional/stencil.py", "def f():\n    import torch"),
    (forbidden_imports, "fractional/stencil.py", "import importlib\nimportlib.import_module('torch')"),
    (forbidden_imports, "fractional/stencil.py", "from filelock import FileLock"),
    (forbidden_imports, "fractional/torch/linear_map.py", "def f():\n    import jax.numpy"),
    (forbidden_imports, "fractional/torch/linear_map.py", "from hpfracc_nn.fractional import jax"),
    (forbidden_imports, "fractional/torch/linear_map.py", "import numba"),
    (forbidden_imports, "fractional/torch/kernels/toeplitz.py", "from cupy import RawKernel"),
    (forbidden_imports, "fractional/torch/kernels/numba_recurrence.py", "import jax"),
    (forbidden_imports, "fractional/jax/product.py", "import torch"),
    (forbidden_imports, "fractional/jax/product.py", "import hpfracc_nn.fractional.torch.linear_map"),
    (forbidden_imports, "layers/flax/fractional.py", "from hpfracc_nn.layers.torch import fractional"),
    (forbidden_imports, "layers/torch/fractional.py", "from hpfracc_nn.training import torch"),
    (forbidden_imports, "layers/torch/fractional.py", "import lightning"),
    (forbidden_imports, "solvers/torch/fdeint.py", "from hpfracc_nn.layers.torch import fractional"),
    (forbidden_imports, "training/torch/fit.py", "import hpfracc_nn.cli"),
    (forbidden_imports, "training/torch/fit.py", "import typer"),
    (forbidden_imports, "fractional/exact.py", "import pandas"),
    (forbidden_imports, "fractional/exact.py", "import requests"),
    (forbidden_imports, "commands.py", "import hpfracc_nn.cli"),
    (forbidden_imports, "analytics/page.py", "import typer"),
    (forbidden_imports, "preprocessing/differencers.py", "from hpfracc_nn.layers import FractionalLayer"),
    (forbidden_imports, "fractional/exact.py", "import sklearn.base"),
    (forbidden_imports, "utils/misc.py", ""),
    (broad_excepts, "fractional/exact.py", "try:\n    pass\nexcept:\n    pass"),
    (broad_excepts, "fractional/exact.py", "try:\n    pass\nexcept Exception as error:\n    raise"),
    (broad_excepts, "fractional/exact.py", "try:\n    pass\nexcept (ValueError, BaseException):\n    pass"),
    (broad_excepts, "fractional/exact.py", "with contextlib.suppress(Exception):\n    pass"),
]


@pytest.mark.parametrize(("rule", "path", "source"), BREAKS)
def test_a_breach_is_found(rule, path, source):
    faults = rule(path, source)
    assert len(faults) == 1
    assert faults[0].startswith(path)


KEEPS = [
    (forbidden_imports, "selection/observe/telemetry.py", "import os\nfrom opentelemetry import trace"),
    (
        forbidden_imports,
        "selection/learning/wisdom.py",
        "import filelock, platformdirs, numpy, hpfracc_nn.errors",
    ),
    (
        forbidden_imports,
        "fractional/__init__.py",
        "def f():\n    import hpfracc_nn.fractional.torch",
    ),
    (forbidden_imports, "fractional/torch/kernels/xla.py", "def f():\n    import jax"),
    (
        forbidden_imports,
        "fractional/torch/kernels/xla.py",
        "def f():\n    from hpfracc_nn.fractional.jax import products",
    ),
    (forbidden_imports, "fractional/torch/kernels/numba_recurrence.py", "import numba, torch"),
    (forbidden_imports, "fractional/numba/recurrence.py", "import numba"),
    (forbidden_imports, "training/torch/optimizers/kernels/cuda_mix.py", "import cupy"),
    (forbidden_imports, "training/torch/report.py", "import lightning, rich, matplotlib.pyplot"),
    (
        forbidden_imports,
        "layers/flax/fractional.py",
        "import flax, hpfracc_nn.fractional.jax",
    ),
    (forbidden_imports, "commands.py", "import typer\nimport hpfracc_nn\nfrom hpfracc_nn import data"),
    (forbidden_imports, "__init__.py", "from hpfracc_nn.layers.torch.fractional import FractionalLayer"),
    (broad_excepts, "selection/fallback.py", "try:\n    pass\nexcept Exception:\n    raise"),
    (broad_excepts, "fractional/exact.py", "try:\n    pass\nexcept (ValueError, TypeError):\n    raise"),
]


@pytest.mark.parametrize(("rule", "path", "source"), KEEPS)
def test_what_is_allowed_passes(rule, path, source):
    assert rule(path, source) == []


@pytest.fixture(scope="module")
def house(load):
    """Return the benchmark that reads the package's structure."""
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("a source distribution carries no benchmarks")
    return load("house")


def test_no_imports_form_a_circle(house):
    assert house.circles(house.imports(house.sources())) == []


LATE = "if TYPE_CHECKING:\n    from hpfracc_nn.a import f\n"
CIRCULAR = [
    {"a.py": "import hpfracc_nn.b", "b.py": "from hpfracc_nn import a"},
    {"a.py": "import hpfracc_nn.b", "b.py": "def f():\n    from hpfracc_nn.a import g"},
    {"a.py": "import hpfracc_nn.b", "b.py": f"from typing import TYPE_CHECKING\n{LATE}"},
    {"a.py": "from . import b", "b.py": "from .c import g", "c.py": "from .a import g"},
    {"a.py": "from hpfracc_nn.b import g", "b.py": "from hpfracc_nn import f", "__init__.py": LATE},  # by the face
]


@pytest.mark.parametrize("text", CIRCULAR)
def test_a_circle_is_found(house, text):
    files = {"__init__.py": "", **text}
    members = sorted(house.module_name(path) for path in text if path != "__init__.py")
    assert house.circles(house.imports(files)) == [members]


def test_what_only_points_one_way_is_no_circle(house):
    face = "if TYPE_CHECKING:\n    from hpfracc_nn.a import f\n    from hpfracc_nn.b import g\n"
    files = {"__init__.py": face, "a.py": "from hpfracc_nn import g", "b.py": "import math", "c.py": "from . import f"}
    assert house.circles(house.imports(files)) == []


def test_a_function_fits_on_a_screen(house):
    assert house.long_functions(house.sources()) == []


@pytest.mark.parametrize(("lines", "count"), [(60, 0), (61, 1)])
def test_a_long_function_is_found(house, lines, count):
    body = '    """What it does.\n\n    In two lines.\n    """\n' + "    # why\n\n    x = 1\n" * lines
    assert len(house.long_functions({"a.py": f"def f(\n    x,\n):\n{body}"})) == count


def imports_eagerly(source: str, packages: tuple[str, ...]) -> bool:
    """Return whether importing the module itself imports one of `packages`: at its top, not in a function."""
    body = [node for node in parsed(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] in packages for name in names)


def modules_of(name: str) -> list[str]:
    """Return our modules of one framework, without those whose whole point is an optional package.

    A kernel file may import Numba at its top; then nothing else may import that file eagerly.
    """
    modules = {module_name(path): file.read_text("utf-8") for path, file in FILES.items()}
    missing = () if importlib.util.find_spec("sklearn") else ("preprocessing",)
    return [
        module
        for module, source in modules.items()
        if framework(module) == name and not imports_eagerly(source, KEPT_OUT[name]) and room(module) not in missing
    ]


LOADED = """
import importlib, json, sys
modules, packages = json.loads(sys.argv[1])
blame = {}
for module in modules:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:  # of an extra that is not installed
        if error.name.startswith("hpfracc_nn"):
            raise
    for package in packages:
        if package in sys.modules:
            blame.setdefault(package, module)
print(json.dumps(blame))
"""


def loaded(modules: list[str], packages: tuple[str, ...]) -> dict[str, str]:
    """Return {package: the module whose import loaded it}, in one fresh process."""
    command = [sys.executable, "-c", LOADED, json.dumps([modules, packages])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", KEPT_OUT)
def test_modules_load_no_other_framework(name):
    modules = modules_of(name)
    if name and modules:
        pytest.importorskip(name)
    assert loaded(modules, KEPT_OUT[name]) == {}


NOT_OF_A_LAYER = (
    "scipy.special",
    "scipy.fft",
    "scipy.stats",
    "numpy.testing",
    "hpfracc_nn.solvers",
    "hpfracc_nn.models",
)


def test_a_layer_loads_no_other_part_of_the_package_or_of_scipy():
    pytest.importorskip("torch")
    program = (
        "import json, sys, torch, hpfracc_nn; hpfracc_nn.FractionalLayer(0.5); print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not set(NOT_OF_A_LAYER) & set(json.loads(done.stdout))


def test_a_loaded_framework_is_found():
    assert loaded(["json", "wave", "zipfile"], ("wave", "numba")) == {"wave": "wave"}


def test_an_eager_import_is_told_from_a_lazy_one():
    assert imports_eagerly("from numba import njit", ("numba",))
    assert not imports_eagerly("def f():\n    import numba", ("numba",))


SIDE_EFFECTS = """
import json, logging, os, random, sys, warnings
def state():
    handlers = [repr(handler) for handler in logging.getLogger().handlers]
    filters = [repr(line) for line in warnings.filters]
    return dict(os.environ), filters, handlers, random.getstate(), os.getcwd(), sys.path[:]
before, known = state(), set(sys.modules)
exec(sys.argv[1])
new = {name.split(".")[0] for name in set(sys.modules) - known}
after = state()
print("\\0" + json.dumps([before == after, sorted(new)]))
"""


def side_effects(source: str) -> tuple[str, bool, set[str]]:
    """Return what `source` prints, whether it leaves the process's settings alone, and what it loads."""
    command = [sys.executable, "-c", SIDE_EFFECTS, source]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed, report = done.stdout.split("\0")
    kept, packages = json.loads(report)
    return printed + done.stderr, kept, set(packages)


def test_importing_the_package_has_no_side_effect():
    printed, kept, packages = side_effects("import hpfracc_nn")
    assert printed == ""
    assert kept
    assert packages.isdisjoint(KEPT_OUT_OF_IMPORT)
    assert "hpfracc_nn" in packages


@pytest.mark.parametrize(
    "source",
    [
        "import os; os.environ['A_NEW_VARIABLE'] = '1'",
        "import warnings; warnings.simplefilter('ignore')",
        "import logging; logging.basicConfig()",
        "import random; random.seed(0)",
    ],
)
def test_a_side_effect_is_found(source):
    assert not side_effects(source)[1]


def test_a_print_and_a_load_are_found():
    printed, _, packages = side_effects("import wave; print(1)")
    assert printed == "1\n"
    assert "wave" in packages
