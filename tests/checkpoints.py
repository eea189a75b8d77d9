"""Weights of every layer, in a file that later versions must load: `python -m tests.checkpoints FILE` writes it.

`reference/layer_weights.npz` is from before the layers' modules were merged. It is written anew only where names or
shapes of parameters are meant to change.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

FILE = pathlib.Path(__file__).parent / "reference" / "layer_weights.npz"


def flat(tree: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, array) for every leaf of nested dicts, lists and tuples of arrays; None is passed over."""
    if isinstance(tree, dict):
        for key, value in sorted(tree.items()):
            yield from flat(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from flat(value, f"{path}/{number}")
    elif tree is not None:
        yield path, np.asarray(tree)


def read(group: str) -> dict[str, np.ndarray]:
    """Return the arrays below a group, such as "torch/FractionalLSTM/weights", by the rest of their names."""
    with np.load(FILE) as stored:
        return {name.removeprefix(f"{group}/"): stored[name] for name in stored.files if name.startswith(f"{group}/")}


def same(tree: Any, wanted: dict[str, np.ndarray]) -> None:
    """Assert that a tree holds exactly these arrays under these names."""
    found = {name.removeprefix("/"): value for name, value in flat(tree)}
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value.dtype == wanted[name].dtype
        np.testing.assert_array_equal(value, wanted[name])


def close(tree: Any, group: str, tolerance: float) -> None:
    """Assert that outputs are those of the file, each to `tolerance` of its largest entry."""
    wanted = {name: value for name, value in read(group).items() if name.split("/")[0] == "out"}
    found = dict(flat({"out": tree}))
    assert [name.removeprefix("/") for name in found] == list(wanted)
    for value, other in zip(found.values(), wanted.values(), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=tolerance * float(np.abs(other).max()))


def of_torch() -> Iterator[tuple[str, np.ndarray]]:
    import torch

    from tests.layer_cases import all_cases, arrays

    for case in all_cases():
        layer = case.make()
        state = {name: value.numpy() for name, value in layer.state_dict().items()}
        torch.manual_seed(3)
        yield from flat({"weights": state, "out": arrays(layer(*case.draw()))}, f"torch/{case.id}")


def of_flax() -> Iterator[tuple[str, np.ndarray]]:
    from tests.flax_checkpoints import CASES, KEYS

    for case in CASES:
        module = case.linen()
        variables = module.init(KEYS, *case.inputs)
        out = module.apply(variables, *case.inputs, rngs=KEYS)
        yield from flat({"weights": variables["params"], "out": out}, f"flax/{case.name}")


if __name__ == "__main__":
    np.savez_compressed(sys.argv[1], allow_pickle=False, **dict(of_torch()), **dict(of_flax()))
