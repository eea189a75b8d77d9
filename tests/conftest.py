"""What every test shares."""

import os
import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def has_cuda() -> bool:
    """Return whether a CUDA device can be used; loads torch only where a driver is installed."""
    if shutil.which("nvidia-smi") is None and not os.path.exists("/dev/nvidia0"):
        return False
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
