"""What is stored of layers is read again: weights of an earlier version, and whole modules in another process."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hpfracc_nn import layers
from tests import checkpoints
from tests.layer_cases import LayerCase, all_cases, arrays

CASES = all_cases()
every = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


@every
def test_weights_of_an_earlier_version_give_its_outputs(case: LayerCase) -> None:
    stored = checkpoints.read(f"torch/{case.id}/weights")
    layer = case.make(seed=5)
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in stored.items()})
    checkpoints.same({name: value.numpy() for name, value in layer.state_dict().items()}, stored)
    torch.manual_seed(3)  # for the layers that draw
    # 1e-10: solves, and random numbers whose last digits depend on the processor
    checkpoints.close(arrays(layer(*case.draw())), f"torch/{case.id}", 1e-10)


def test_weights_of_every_layer_are_kept() -> None:
    kept = {base.__name__ for case in CASES for base in case.layer.__mro__}
    assert {name for name in vars(layers)["__all__"] if isinstance(getattr(layers, name), type)} <= kept | {
        "Alpha",
        "ProbabilisticAlpha",
    }


_READ = """
import sys
import torch
from tests import checkpoints
from tests.layer_cases import arrays
for name, layer, inputs in torch.load(sys.argv[1], weights_only=False):
    torch.manual_seed(3)
    checkpoints.close(arrays(layer(*inputs)), f"torch/{name}", 1e-10)
    print(name)
"""


@pytest.mark.slow
def test_whole_layers_that_are_pickled_compute_the_same_in_a_new_process(tmp_path: Path) -> None:
    made = [(case.id, copy.deepcopy(case.make()), case.draw()) for case in CASES]
    torch.save(made, tmp_path / "layers.pt")
    call = [sys.executable, "-c", _READ, str(tmp_path / "layers.pt")]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [case.id for case in CASES]
