"""Every feature that the documentation lists has its page and its tests."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
ROWS = re.findall(r"^\| (.+) \| \[(.+)\]\(.+\) \| (.+) \|$", (ROOT / "docs/features.md").read_text("utf-8"), re.M)


@functools.cache
def names_in(name: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / name).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_are_rows():
    assert len(ROWS) > 50


@pytest.mark.parametrize(("feature", "page", "tests"), [pytest.param(*row, id=row[0]) for row in ROWS])
def test_a_feature_has_its_page_and_its_tests(feature, page, tests):
    assert (ROOT / "docs" / page).is_file()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", tests)
    assert named
    assert [f"{file}::{test}" for file, test in named if test not in names_in(file)] == []
