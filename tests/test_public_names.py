"""What `__all__` of a package says is there for who reads the source: type checkers, editors, the reference pages."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "hpfracc_nn"
PACKAGES = sorted(path.parent for path in ROOT.glob("**/__init__.py") if "__all__" in path.read_text("utf-8"))


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
