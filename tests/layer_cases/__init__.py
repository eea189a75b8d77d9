"""What the shared tests of the layers need to know of each: how it is made, its formula in NumPy, its limit.

A file in this folder is found by itself. It holds `CASES`, a list of `LayerCase`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Draw:
    """Random tensors of one dtype on one device: `draw(2, 3)`, or `draw.integers([[0, 1], [1, 0]])` as they are."""

    def __init__(self, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0):
        self.dtype, self.device = dtype, device
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.as_tensor(self._rng.standard_normal(shape)).to(self.device, self.dtype)

    def integers(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=self.device)


@dataclass(frozen=True)
class LayerCase:
    """One layer with one set of options.

    Args:
        layer: The class.
        args: Its positional arguments.
        options: Its keyword arguments, without alpha, learn_alpha, device and dtype.
        inputs: `inputs(draw, batch)` draws what forward takes; `batch` may be 0 where `is_batched`.
        reference: `reference(layer, *inputs)` computes the layer's result from the formula in its docstring, in
            float64 NumPy and O(n**2) loops; inputs are arrays, results an array or nested tuples of arrays.
        name: What tells it from other cases of its class.
        alphas: Where it is compared with the reference; the first is its alpha in every other test.
        limit: (alpha, ordinary): at this alpha `ordinary(layer)` is torch's own module with the layer's weights, or
            another function of forward's inputs.
        time: The time axis of the first input and of the first output, where the layer streams.
        refusals: (name, call, exception, what its message matches): bad input.
        is_batched: Whether `inputs` heeds its `batch`.
        is_random: Whether its result depends on random numbers, which the shared tests seed.
        second: Whether it has second gradients.
        chooses: Whether a manager chooses a kernel for it; operators on periodic signals have the FFT alone.
    """

    layer: type[nn.Module]
    args: tuple[Any, ...]
    inputs: Callable[[Draw, int], tuple[Any, ...]]
    reference: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    alphas: tuple[Any, Any, Any] = (0.4, 0.65, 0.9)
    limit: tuple[Any, Callable[[Any], Callable[..., Any]]] | None = None
    time: int | None = None
    refusals: tuple[tuple[str, Callable[[], Any], type[Exception], str], ...] = ()
    is_batched: bool = True
    is_random: bool = False
    second: bool = True
    chooses: bool = True

    def make(self, alpha: Any = None, *, seed: int = 1, **options: Any) -> Any:
        """Return the layer, in float64 with a learned alpha unless told otherwise."""
        torch.manual_seed(seed)
        options = {"dtype": torch.float64, "learn_alpha": True, **self.options, **options}
        return self.layer(*self.args, alpha=self.alphas[0] if alpha is None else alpha, **options)

    def draw(
        self, dtype: torch.dtype = torch.float64, device: str = "cpu", *, seed: int = 0, batch: int = 2
    ) -> tuple[Any, ...]:
        return self.inputs(Draw(dtype, device, seed), batch)

    @property
    def id(self) -> str:
        return self.layer.__name__ + (f"-{self.name}" if self.name else "")


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples and lists; None and other values are passed over."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples with each tensor or array changed."""
    if isinstance(value, Tensor | np.ndarray):
        return change(value)
    if isinstance(value, tuple | list):
        return tuple(mapped(change, each) for each in value)
    return value


def arrays(value: Any) -> Any:
    return mapped(lambda tensor: tensor.detach().cpu().numpy(), value)


def _found() -> list[LayerCase]:
    cases: list[LayerCase] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        cases += importlib.import_module(f"{__name__}.{module.name}").CASES
    return cases


ALL: list[LayerCase] = []  # filled below: the files import the class above


def all_cases() -> list[LayerCase]:
    """Return the cases of every file in this folder."""
    if not ALL:
        ALL.extend(_found())
    return ALL


__all__ = ["Draw", "LayerCase", "all_cases", "arrays", "mapped", "replace", "tensors"]
