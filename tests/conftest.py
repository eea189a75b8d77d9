"""What every test shares."""

import importlib.util
import shutil

import pytest


def has_cuda() -> bool:
    """Return whether a CUDA device can be used; loads torch only where there is a driver."""
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("torch") is None:
        return False
    return importlib.import_module("torch").cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
