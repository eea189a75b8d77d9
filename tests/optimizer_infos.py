"""PyTorch's own description of its optimizers, made one of the fractional ones.

An `OptimizerInfo` lists the options, errors, implementations and schedulers that PyTorch tests an optimizer with. Those
of the base optimizers are taken over for subclasses that have an alpha of their own.
"""

import copy
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import (
    OptimizerInfo,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)
from torch.testing._internal.common_utils import TestCase

from hpfracc_nn.training import FractionalAdam, FractionalAdamW
from tests.optimizer_cases import AVERAGES, BASES, named

INFOS: dict[Any, Any] = {info.optim_cls: info for info in optim_db}
MEMORIES = [options for options in AVERAGES if options["kind"] == "integral"]
OTHERS = [*AVERAGES, {"kind": "caputo"}]
VARIANTS: list[dict[str, Any]] = [{"alpha": 1.0}, *({"alpha": 0.8, **each} for each in OTHERS)]


def subclass(cls, options):
    """Return the class with other defaults, as PyTorch's tests construct an optimizer: by the base's options only."""

    def __init__(self, params, *args, **kwargs):
        cls.__init__(self, params, *args, **options, generator=torch.Generator().manual_seed(0), **kwargs)

    return type(f"{cls.__name__}-{named(options)}", (cls,), {"__init__": __init__})


def info_of(cls, options):
    """Return the base optimizer's description, of the subclass; with its own kinds of gradients and flags."""
    base = INFOS[BASES[cls]]
    is_base = options["alpha"] == 1
    follows = is_base or options["kind"] in ("integral", "difference")
    return OptimizerInfo(
        subclass(cls, options),
        optim_inputs_func=base.optim_inputs_func,
        optim_error_inputs_func=base.optim_error_inputs_func,
        scheduler_inputs=base.scheduler_inputs,
        supported_impls=tuple(flag for flag in base.supported_impls if follows or flag != "differentiable"),
        not_og_supported_flags=base.not_og_supported_flags,
        supports_sparse=base.supports_sparse and is_base,
        metadata_for_sparse=base.metadata_for_sparse,
        has_capturable_arg=base.has_capturable_arg,
        supports_fused_on=base.supports_fused_on,
    )


DB = {(cls, named(options)): info_of(cls, options) for cls in BASES for options in VARIANTS}
FAST = {(cls, named({"alpha": 0.8, **MEMORIES[0]})) for cls in BASES if cls is not FractionalAdamW}
FAST |= {(FractionalAdam, named({"alpha": 0.8, **options})) for options in MEMORIES}


def described(chosen=lambda info: True):
    """Parametrise over the descriptions that are chosen; the fast suite takes each update and each memory once."""
    cases = [
        pytest.param(info, id=info.name, marks=[] if key in FAST else [pytest.mark.slow])
        for key, info in DB.items()
        if chosen(info)
    ]
    return pytest.mark.parametrize("info", cases)


every_info = described()
with_foreach = described(lambda info: "foreach" in info.supported_impls)
with_fused = described(lambda info: "cpu" in info.supports_fused_on)


JUDGE = TestCase()


def inputs(info, skip=("differentiable",)):
    """Return every combination of options, and each implementation by itself."""
    return [
        copy.deepcopy(each.kwargs)
        for each in _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info, skip=skip)
    ]


def linear(contiguous=True, dtype=torch.float32):
    """Return a weight and a bias, and a function that makes a closure of an optimizer of theirs."""
    x = torch.randn(5, dtype=dtype)
    if contiguous:
        weight, bias = torch.randn(10, 5, dtype=dtype), torch.randn(10, dtype=dtype)
    else:
        weight, bias = torch.randn(10, 5, 2, dtype=dtype)[..., 0], torch.randn(10, 2, dtype=dtype)[..., 0]
    params = [torch.nn.Parameter(weight), torch.nn.Parameter(bias)]

    def closure_of(optimizer, params=params):
        def closure():
            optimizer.zero_grad()
            loss = (params[0].mv(x) + params[1]).square().sum()
            loss.backward()
            return loss

        return closure

    return params, closure_of


def same(one, other):
    """Assert that two nested states are equal bit for bit."""
    JUDGE.assertEqual(one, other, rtol=0, atol=0)  # noqa: PT009  it compares what is nested, tensors and text alike
