"""What is stored of Flax's layers is read again: variables of an earlier version, and modules in another process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")

from flax import nnx  # noqa: E402

from hpfracc_nn import layers  # noqa: E402
from tests import checkpoints  # noqa: E402
from tests.flax_checkpoints import CASES, KEYS, FlaxCase  # noqa: E402

every = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
ROUNDING = 2e-5  # of float32, in solves and attention


def nested(stored: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return arrays by "a/b/c" as nested dicts."""
    tree: dict[str, Any] = {}
    for name, value in stored.items():
        *path, last = name.split("/")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = value
    return tree


def shapes(params: Any) -> Any:
    return jax.tree.map(lambda each: (each.shape, each.dtype), params)


@every
def test_variables_of_an_earlier_version_give_its_outputs_in_linen(case: FlaxCase) -> None:
    layer, params = case.linen(), nested(checkpoints.read(f"flax/{case.name}/weights"))
    drawn = jax.eval_shape(layer.init, KEYS, *case.inputs)["params"]
    assert shapes(drawn) == shapes(params)
    checkpoints.close(layer.apply({"params": params}, *case.inputs, rngs=KEYS), f"flax/{case.name}", ROUNDING)


@every
def test_variables_of_an_earlier_version_give_its_outputs_in_nnx(case: FlaxCase) -> None:
    module, stored = case.nnx(seed=1), checkpoints.read(f"flax/{case.name}/weights")
    assert [name.removeprefix("/") for name, _ in checkpoints.flat(parameters(module))] == sorted(stored)
    nnx.update(module, nested(stored))
    checkpoints.same(parameters(module), stored)
    if case.name != "FSDEBlock":  # an nnx module draws the paths of its own stream
        checkpoints.close(module(*case.inputs), f"flax/{case.name}", ROUNDING)


def parameters(module: Any) -> Any:
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def test_variables_of_every_layer_are_kept() -> None:
    pytest.importorskip("torch")  # whose classes they are
    classes = {name for name in vars(layers)["__all__"] if isinstance(getattr(layers, name), type)}
    assert {case.name for case in CASES} == classes - {"Alpha", "ProbabilisticAlpha"}


_READ = """
import pickle, sys
import numpy as np
for name, module, layer, variables, inputs, wanted, keys in pickle.load(open(sys.argv[1], "rb")):
    import jax
    rngs = {each: jax.random.wrap_key_data(key) for each, key in keys.items()}
    np.testing.assert_array_equal(layer.apply(variables, *inputs, rngs=rngs), wanted[0])
    np.testing.assert_array_equal(module(*inputs), wanted[1])
    print(name)
"""


@pytest.mark.slow
def test_modules_that_are_pickled_compute_the_same_in_a_new_process(tmp_path: Path) -> None:
    made = []
    keys = {name: np.asarray(jax.random.key_data(key)) for name, key in KEYS.items()}
    for case in CASES:
        module, layer = copy.deepcopy(case.nnx()), copy.deepcopy(case.linen())
        variables = {"params": nested(checkpoints.read(f"flax/{case.name}/weights"))}
        found = layer.apply(variables, *case.inputs, rngs=KEYS), copy.deepcopy(module)(*case.inputs)
        wanted = [np.asarray(each) for each in found]
        made.append((case.name, module, layer, variables, case.inputs, wanted, keys))
    file = tmp_path / "layers.pickle"
    file.write_bytes(pickle.dumps(made))
    call = [sys.executable, "-c", _READ, str(file)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [case.name for case in CASES]
