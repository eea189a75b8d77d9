"""Models from text, as on a command line."""

from __future__ import annotations

import ast
from typing import Any

from hpfracc_nn.models.impedance import CIRCUITS
from hpfracc_nn.models.model import PARALLEL, SERIES, Model
from hpfracc_nn.models.rheology import MATERIALS

_OWNER = "parse"
_OPERATORS: dict[type, str] = {ast.Sub: SERIES, ast.BitOr: PARALLEL}

KINDS: dict[str, type[Model]] = {**MATERIALS, **CIRCUITS}


def parse(text: str) -> Model:
    """Return the model that a text names.

    Args:
        text: Names of classes, or the same in lower case with underscores; values in parentheses; "-" for series, "|"
            for parallel, and parentheses. Nothing else is evaluated.

    Raises:
        ValueError: The text has another form, names no model, or arranges materials with circuits; or a model refuses
            its values.

    Examples:
        >>> parse("fractional_maxwell(beta=0)").label
        'FractionalMaxwell(beta=0)'
        >>> parse("Resistor - (Resistor | ConstantPhase)").unknowns
        ('R_1', 'R_2', 'Q', 'alpha')
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise _wrong(text) from None
    return _model(tree, text)


def _model(node: ast.expr, text: str) -> Model:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left: Any
        left, right = _model(node.left, text), _model(node.right, text)
        if left.domain != right.domain:
            raise ValueError(
                f"{_OWNER}({text!r}): needs elements of rheology or of impedance; {left.label} and {right.label} are "
                "of both; take one kind."
            )
        arranged: Model = left - right if isinstance(node.op, ast.Sub) else left | right
        return arranged
    if isinstance(node, ast.Name):
        return _kind(node.id)()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        return _kind(node.func.id)(**{str(each.arg): _number(each.value, text) for each in node.keywords})
    raise _wrong(text)


def _kind(name: str) -> type[Model]:
    wanted = name.replace("_", "").lower()  # names of classes, such as ZARC and FractionalZener, are accepted too
    for known, kind in KINDS.items():
        if wanted in (known.replace("_", ""), kind.__name__.lower()):
            return kind
    raise ValueError(f"{_OWNER}({name!r}): needs the name of a model; pass one of {', '.join(KINDS)}.")


def _number(node: ast.expr, text: str) -> Any:
    try:
        found = ast.literal_eval(node)
    except ValueError:
        raise _wrong(text) from None
    if not isinstance(found, int | float | str) or isinstance(found, bool):
        raise _wrong(text)
    return found


def _wrong(text: str) -> ValueError:
    return ValueError(
        f"{_OWNER}({text!r}): needs names of models, arranged by - and |; pass such as 'fractional_zener', "
        "'fractional_maxwell(beta=0)' or 'Resistor - (Resistor | ConstantPhase)'."
    )
