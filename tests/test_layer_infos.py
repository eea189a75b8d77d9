"""What PyTorch tests of its own modules, by PyTorch's descriptions (`ModuleInfo`), run on the layers.

The bodies follow those of PyTorch's generic module tests, which it does not ship.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput
from torch.testing._internal.common_utils import TestCase, freeze_rng_state

from tests.layer_cases import Draw, LayerCase, all_cases, arrays, mapped, tensors

JUDGE = TestCase()


def inputs_of(case: LayerCase) -> Any:
    """Return PyTorch's function that lists (constructor's arguments, forward's arguments, reference) of a module."""

    def module_inputs(
        info: ModuleInfo, device: str, dtype: torch.dtype, requires_grad: bool, training: bool, **given: Any
    ) -> list[ModuleInput]:
        drawn = case.inputs(Draw(dtype, device), 2)
        drawn = mapped(lambda x: x.requires_grad_(requires_grad and x.is_floating_point()), drawn)
        made = FunctionInput(*case.args, **{"alpha": case.alphas[0], "learn_alpha": True, **case.options})

        def reference(layer: nn.Module, parameters: list[Tensor], *inputs: Any) -> Any:
            with torch.no_grad():
                return mapped(torch.as_tensor, case.reference(layer, *arrays(inputs)))

        return [ModuleInput(made, FunctionInput(*drawn), desc=case.name, reference_fn=reference)]

    return module_inputs


INFOS = {case.id: ModuleInfo(case.layer, module_inputs_func=inputs_of(case)) for case in all_cases()}
FIRST = {case.layer: case.id for case in reversed(all_cases())}  # in the fast suite; the others in the slow one
every_info = pytest.mark.parametrize(
    "info",
    [
        pytest.param(info, marks=() if name == FIRST[info.module_cls] else pytest.mark.slow, id=name)
        for name, info in INFOS.items()
    ],
)
every_dtype = pytest.mark.parametrize("dtype", INFOS[next(iter(INFOS))].dtypes, ids=str)


def made(info: ModuleInfo, dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> tuple[Any, Any, Any]:
    """Return the module of the only description, its forward arguments, and the description."""
    (given,) = info.module_inputs_func(info, "cpu", dtype, requires_grad, training=True)
    with freeze_rng_state():
        torch.manual_seed(1)
        module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).to(dtype)
    return module, given.forward_input, given


def run(module: nn.Module, forward: FunctionInput) -> Any:
    with freeze_rng_state():
        torch.manual_seed(3)
        return module(*forward.args, **forward.kwargs)


def same(one: Any, other: Any) -> None:
    JUDGE.assertEqual(one, other, rtol=0, atol=0)  # noqa: PT009  it compares what is nested


@every_info
@every_dtype
def test_forward_agrees_with_the_reference(info: ModuleInfo, dtype: torch.dtype) -> None:
    module, forward, given = made(info, dtype)
    found = run(module, forward)
    wide = mapped(lambda x: x.double() if x.is_floating_point() else x, forward.args)
    with freeze_rng_state():
        torch.manual_seed(3)
        expected = given.reference_fn(copy.deepcopy(module).double(), *wide)
    for one, other in zip(tensors(found), tensors(expected), strict=True):
        assert one.dtype == (dtype if one.is_floating_point() else one.dtype)
        scale = float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=scale * (1e-9 if dtype == torch.float64 else 1e-4))


@every_info
def test_factory_arguments_reach_every_parameter_and_buffer(info: ModuleInfo) -> None:
    """Every parameter is created with the device and dtype that were asked for, and none is moved there later."""
    (given,) = info.module_inputs_func(info, "cpu", torch.float64, False, training=True)
    create, asked = nn.Parameter.__new__, []

    def noted(kind: Any, data: Any = None, requires_grad: bool = True) -> Any:
        asked.append((data.device.type, data.dtype))
        return create(kind, data, requires_grad)

    options = {**given.constructor_input.kwargs, "device": "cpu", "dtype": torch.float16}
    with patch.object(nn.Parameter, "__new__", noted):
        module = info.module_cls(*given.constructor_input.args, **options)
    assert set(asked) == {("cpu", torch.float16)}
    assert all(buffer.dtype in (torch.float16, torch.int64, torch.bool) for buffer in module.buffers())


@every_info
def test_state_survives_pickling_and_saving(info: ModuleInfo) -> None:
    module, forward, _ = made(info)
    expected = run(module, forward)
    same(run(pickle.loads(pickle.dumps(module)), forward), expected)
    for kept in (module.state_dict(), module):
        with io.BytesIO() as file:
            torch.save(kept, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=kept is not module)
        fresh = made(info)[0] if kept is not module else loaded
        if kept is not module:
            assert not any(fresh.load_state_dict(loaded, strict=True))
        same(run(fresh, forward), expected)


@every_info
def test_repr_and_the_state_dict_name_the_same_module(info: ModuleInfo) -> None:
    module, _, _ = made(info)
    assert repr(module) == str(module)
    assert set(dict(module.named_parameters())) <= set(module.state_dict())


@every_info
@pytest.mark.parametrize(
    "strided", ["both", *(pytest.param(which, marks=pytest.mark.slow) for which in ("inputs", "gradients"))]
)
def test_strides_change_nothing(info: ModuleInfo, strided: str) -> None:
    """Results and gradients are the same for inputs and output gradients that are not contiguous."""
    module, forward, _ = made(info, requires_grad=True)

    def spread(x: Tensor) -> Tensor:
        return torch.stack((x, x), -1)[..., 0] if x.ndim else x

    def of(change_inputs: bool, change_gradients: bool) -> list[Tensor]:
        module.zero_grad()
        leaves = mapped(lambda x: x.detach().clone().requires_grad_(x.is_floating_point()), forward.args)
        args = mapped(spread, leaves) if change_inputs else leaves
        outs = [out for out in tensors(run(module, FunctionInput(*args))) if out.requires_grad]
        grads = [torch.linspace(1, 2, out.numel(), dtype=out.dtype).reshape(out.shape) for out in outs]
        torch.autograd.backward(outs, [spread(grad) for grad in grads] if change_gradients else grads)
        found = [*tensors(leaves), *module.parameters()]
        return [*(out.detach() for out in outs), *(x.grad for x in found if x.grad is not None)]

    found, expected = of(strided != "gradients", strided != "inputs"), of(False, False)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@every_info
def test_inputs_are_not_written_to(info: ModuleInfo) -> None:
    module, forward, _ = made(info)
    kept = copy.deepcopy(forward.args)
    run(module, forward)
    same(forward.args, kept)


@every_info
def test_training_and_evaluation_differ_only_where_the_description_says(info: ModuleInfo) -> None:
    module, forward, _ = made(info)
    trained = run(module.train(), forward)
    evaluated = run(module.eval(), forward)
    assert info.train_and_eval_differ is False
    same(trained, evaluated)


@every_info
def test_moves_keep_the_parameters_and_their_gradients(info: ModuleInfo) -> None:
    module, forward, _ = made(info)
    torch.stack([out.sum() for out in tensors(run(module, forward)) if out.requires_grad]).sum().backward()
    kept = {name: (p.data_ptr(), p.grad) for name, p in module.named_parameters()}
    module.to("cpu")
    assert {name: p.data_ptr() for name, p in module.named_parameters()} == {n: where for n, (where, _) in kept.items()}
    module.to(torch.float32)
    for parameter in module.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is None or parameter.grad.dtype == torch.float32
    module.to(torch.float64).zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.gpu
@every_info
def test_a_gpu_and_back(info: ModuleInfo) -> None:
    module, forward, _ = made(info)
    expected = run(module, forward)
    on_gpu = run(module.to("cuda"), FunctionInput(*mapped(lambda x: x.to("cuda"), forward.args)))
    for one, other in zip(tensors(on_gpu), tensors(expected), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)
    same(run(module.to("cpu"), forward), expected)
