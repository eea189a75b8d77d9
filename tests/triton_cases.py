"""The kernels in Triton, run by its interpreter in the place of a GPU: `make triton` sets TRITON_INTERPRET for that."""

import importlib.util
import os
from functools import cache

import pytest

from hpfracc_nn.fractional.torch.kernels import cuda_launch, triton_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Facts
from hpfracc_nn.selection import Workload
from tests import torch_cases
from tests.cuda_cases import manager_for

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


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Interpreted:
    """A device of the host; kernels take data on the CPU for it."""
    found = Interpreted()
    monkeypatch.setattr(cuda_launch, "facts", found.facts)
    monkeypatch.setattr(triton_launch, "refusal", lambda workload: None)
    monkeypatch.setattr(triton_launch, "compilation", lambda device, code: found.asked.add(code))
    monkeypatch.setattr(triton_launch, "ran", lambda device, code: found.ran.add(code))
    monkeypatch.setattr(torch_cases, "manager_for", cache(manager_for))
    return found
