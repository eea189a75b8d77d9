"""Values that an argument may be given by mistake: a number of another kind, none at all, a thing that is no number."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.frameworks import is_there


class Number(float):
    """A float of a class of its own, as some packages of units make."""


def a_function(*_: Any) -> float:
    return 0.5


SCALARS: tuple[Callable[[int], Any], ...] = (
    *(np.bool_, np.int8, np.uint64, np.int64, np.float16, np.float32, np.float64, np.longdouble, np.complex64),
    *(np.complex128, np.str_, np.bytes_, np.object_),
)

VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "0": lambda: 0,
    "-1": lambda: -1,
    "1": lambda: 1,
    "0.5": lambda: 0.5,
    "-0.0": lambda: -0.0,
    "1e308": lambda: 1e308,
    "5e-324": lambda: 5e-324,
    "2**70": lambda: 2**70,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "True": lambda: True,
    "empty text": lambda: "",
    "text": lambda: "no such",
    "bytes": lambda: b"",
    "complex": lambda: 0.5 + 0.5j,
    "list": list,
    "list of None": lambda: [None],
    "list of floats": lambda: [0.5, 0.6],
    "pair": lambda: (0.25, 0.75),
    "triple": lambda: (1, 1, 1),
    "reversed pair": lambda: (1.0, 0.0),
    "nested": lambda: [[0.5], [0.5, 0.6]],
    "dict": dict,
    "dict of text": lambda: {"a": 1},
    "set": lambda: {0.5},
    "object": object,
    "class": lambda: object,
    "function": lambda: a_function,
    "lambda": lambda: lambda: None,
    "generator": lambda: (x for x in (0.5, 0.6)),
    "range": lambda: range(3),
    "subclass of float": lambda: Number(0.5),
    "array of no axes": lambda: np.array(0.5),
    "array": lambda: np.array([0.5, 0.6]),
    "empty array": lambda: np.zeros(0),
    "array of integers": lambda: np.arange(3),
    "array of booleans": lambda: np.array([True, False]),
    "array of text": lambda: np.array(["a"]),
    "array of objects": lambda: np.array([None], dtype=object),
    "array of complex": lambda: np.array([0.5j]),
    "array of nan": lambda: np.array([math.nan]),
    "array of two axes": lambda: np.ones((2, 2)),
    "dtype of numpy": lambda: np.dtype("int8"),
    **{f"numpy.{kind.__name__}": partial(kind, 1) for kind in SCALARS},
    "numpy.datetime64": lambda: np.datetime64(1, "s"),
    "numpy.timedelta64": lambda: np.timedelta64(1, "s"),
}  # fmt: skip

if is_there("torch"):
    import torch

    class FourInputs(torch.nn.Module):
        """Nobody calls it with as many: neither schedules nor right-hand sides with parameters."""

        def forward(self, first: Any, second: Any, third: Any, fourth: Any) -> Any:
            raise AssertionError((first, second, third, fourth))

    VALUES |= {
        "tensor of no axes": lambda: torch.tensor(0.5),
        "tensor": lambda: torch.tensor([0.5, 0.6]),
        "empty tensor": lambda: torch.zeros(0),
        "tensor of integers": lambda: torch.arange(3),
        "tensor of complex": lambda: torch.tensor([0.5j]),
        "tensor that learns": lambda: torch.tensor(0.5, requires_grad=True),
        "tensor on meta": lambda: torch.zeros((), device="meta"),
        "tensors on meta": lambda: torch.zeros(2, device="meta"),
        "module": FourInputs,
        "dtype of torch": lambda: torch.int64,
    }
