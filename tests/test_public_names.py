"""What a package exports is there for who reads the source: type checkers, editors, the reference pages."""

import ast
import importlib
import pathlib
import re
import subprocess
import sys
from typing import assert_type

import pytest

import hpfracc_nn
from hpfracc_nn import lazy
from tests.public_names import public_names, removed

ROOT = pathlib.Path(__file__).parents[1] / "hpfracc_nn"
FACES = {path.parent: path.read_text("utf-8") for path in sorted(ROOT.glob("**/__init__.py"))}
PACKAGES = [package for package, source in FACES.items() if "__all__ = [" in source]
LAZY = [package for package, source in FACES.items() if "lazy.attach(" in source]


def bound(body: list[ast.stmt]) -> set[str]:
    """Return the names that statements bind, those under `if TYPE_CHECKING` too."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.If):
            names |= bound(node.body)
    return names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT.parent).as_posix())
def test_a_public_name_is_bound_where_a_type_checker_sees_it(package):
    tree = ast.parse((package / "__init__.py").read_text("utf-8"))
    (said,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert set(ast.literal_eval(said)) <= bound(tree.body)


@pytest.mark.parametrize("package", LAZY, ids=lambda path: path.relative_to(ROOT.parent).as_posix())
def test_a_name_that_is_loaded_when_it_is_used_is_exported_to_type_checkers(package):
    name = ".".join(package.relative_to(ROOT.parent).parts)
    assert lazy.exports(name)
    for node in lazy._imports(name):
        assert [alias.name for alias in node.names if alias.name not in ("*", alias.asname)] == []


def test_no_public_name_is_removed():
    """A name leaves the list two minor versions after its deprecation: see docs/releasing.md."""
    assert removed(public_names()) == []
    assert removed(public_names() - {"hpfracc_nn.Caputo"}) == ["hpfracc_nn.Caputo"]


def test_type_checkers_know_what_a_name_is():
    """`make types` reads this: of a package with a `__getattr__` it would take any name for anything."""
    assert_type(hpfracc_nn.Caputo(0.5), hpfracc_nn.fractional.Caputo)
    assert_type(hpfracc_nn.choose("toeplitz", (1, 8), framework="numpy"), hpfracc_nn.selection.Plan)
    with pytest.raises(AttributeError, match="has no attribute"):
        hpfracc_nn.no_such_name  # type: ignore[attr-defined]  # noqa: B018  and unknown to type checkers too


@pytest.fixture
def parcel(tmp_path, monkeypatch):
    """Return what makes a package of such a name and text, with a module `deep` that counts how often it is loaded."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, exported, deep="f, g = object(), object()"):
        folder = tmp_path / name
        folder.mkdir()
        lines = "".join(f"    {line}\n" for line in exported)
        head = "from typing import TYPE_CHECKING\nfrom hpfracc_nn import lazy\n"
        tail = "__getattr__, __dir__, __all__ = lazy.attach(__name__)\n"
        (folder / "__init__.py").write_text(f"{head}if TYPE_CHECKING:\n{lines}{tail}")
        (folder / "deep.py").write_text(deep)
        return importlib.import_module(name)

    yield make
    for name in [name for name in sys.modules if name.startswith("parcel_")]:
        del sys.modules[name]


def test_a_name_is_loaded_once_and_when_it_is_used(parcel):
    package = parcel("parcel_a", ["from parcel_a.deep import f as f, g as second", "from parcel_a import deep as deep"])
    assert package.__all__ == ["deep", "f", "second"]
    assert set(package.__all__) <= set(dir(package))
    assert "lazy" not in dir(package)
    assert "parcel_a.deep" not in sys.modules
    assert package.f is package.deep.f
    assert package.second is package.deep.g
    assert "f" in vars(package)
    with pytest.raises(AttributeError, match=r"^module 'parcel_a' has no attribute 'h'$"):
        package.h  # noqa: B018


def test_a_star_takes_the_names_of_another_package_that_no_other_line_has(parcel):
    parcel("parcel_b", ["from parcel_b.deep import f as f, g as g"])
    package = parcel("parcel_c", ["from parcel_c.deep import g as g", "from parcel_b import *"])
    assert package.__all__ == ["f", "g"]
    assert package.f is sys.modules["parcel_b.deep"].f
    assert package.g is package.deep.g


@pytest.mark.parametrize(
    ("absent", "said"),
    [("sklearn", "'scikit-learn'; pip install 'hpfracc-nn[sklearn]'"), ("torch", "'torch'; pip install 'hpfracc-nn[t")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(parcel, absent, said):
    deep = f"raise ModuleNotFoundError('No module', name={absent!r})"
    package = parcel(f"parcel_{absent}", [f"from parcel_{absent}.deep import f as f"], deep)
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"parcel_{absent}.f: needs the package {said}")) as raised:
        package.f  # noqa: B018
    assert raised.value.name == absent


def test_without_jax_its_package_names_the_extra():
    script = "import sys; sys.modules['jax'] = None; import hpfracc_nn.jax"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "hpfracc_nn.jax: needs the package 'jax'; pip install 'hpfracc-nn[jax]'." in done.stderr


def test_an_error_of_the_module_itself_is_raised_as_it_is(parcel):
    package = parcel("parcel_d", ["from parcel_d.deep import f as f"], "import no_such_module_anywhere")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_module_anywhere'$"):
        package.f  # noqa: B018
