"""The kernels in Triton, run by its interpreter in the place of a GPU: `make triton` sets TRITON_INTERPRET for that."""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from hpfracc_nn.fractional.torch.kernels import cuda_launch, triton_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Facts
from hpfracc_nn.fractional.torch.kernels.triton_product import Scan
from tests import torch_cases
from tests.cuda_cases import manager_for

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # tracers of torch leave it open, of which some versions warn
IS_THERE = importlib.util.find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_interpreter = pytest.mark.skipif(not (IS_THERE and IS_INTERPRETED), reason="needs Triton's interpreter")


class Interpreted:
    """Stands for a device, whose number of processors decides what is cut; `launches` are the names of what ran."""

    def __init__(self) -> None:
        self.processors = 1
        self.launches: list[str] = []
        self.asked: set[object] = set()
        self.ran: set[object] = set()

    def facts(self, device: str) -> Facts:
        return Facts(self.processors, 227 << 10)

    def kernel(self, real: Callable[[Scan, str], Any]) -> Callable[[Scan, str], Any]:
        """Return what notes each launch: its name, and what is compiled into it."""

        def noting(scan: Scan, name: str) -> Any:
            kernel = real(scan, name)

            class Grid:
                def __getitem__(self, grid: tuple[int, ...]) -> Any:
                    return lambda *args, **given: self.launch(grid, args, given)

                def launch(_, grid: tuple[int, ...], args: tuple, given: dict[str, Any]) -> None:
                    fixed = {key: value for key, value in given.items() if key.isupper()}
                    self.launches.append(" ".join([name, *(f"{key}={fixed[key]}" for key in sorted(fixed))]))
                    kernel[grid](*args, **given)

            return Grid()

        return noting


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    """A device of the host; kernels take data on the CPU for it."""
    found = Interpreted()
    monkeypatch.setattr(cuda_launch, "facts", found.facts)
    monkeypatch.setattr(triton_launch, "refusal", lambda workload: None)
    monkeypatch.setattr(triton_launch, "compilation", lambda device, code: found.asked.add(code))
    monkeypatch.setattr(triton_launch, "ran", lambda device, code: found.ran.add(code))
    monkeypatch.setattr(torch_cases, "manager_for", cache(manager_for))
    monkeypatch.setattr(Scan, "_kernel", found.kernel(Scan._kernel))
    return found
