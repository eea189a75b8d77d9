"""The operations in Triton as compilers take them: traced, exported, differentiated; run by Triton's interpreter.

`make triton` runs these, in an environment of its own; elsewhere they are left out.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.torch.weights import Weights, weights_of
from tests.test_optimizer_mix import MIXES, expected
from tests.torch_cases import DT, matrix, multiplied
from tests.triton_cases import interpreted, needs_interpreter  # noqa: F401  a fixture

pytestmark = [needs_interpreter, pytest.mark.usefixtures("interpreted")]
DEFINITIONS = [Caputo(0.5), RiemannLiouville(1.7, scheme="l1_2"), Caputo(0.1)]
every_definition = pytest.mark.parametrize("definition", DEFINITIONS, ids=repr)
SHAPES = [(2, 1, 40, 1), (2, 1, 20, 3)]


def weights(definition: Definition, n: int) -> Weights:
    return weights_of(definition, n, DT, torch.float64, torch.device("cpu"))


def given(definition: Definition, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the arguments of the operation."""
    from hpfracc_nn.fractional.torch.kernels.triton_product import operands

    of = weights(definition, shape[2])
    b = of.boundary
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    return x, *operands(of.chunks(16)), b.columns, b.differences, b.subtract, b.taylor, b.start, 3, False


@every_definition
@pytest.mark.parametrize("shape", SHAPES)
def test_the_operation_is_the_operator_and_its_gradient_the_transpose(
    definition: Definition, shape: tuple[int, ...]
) -> None:
    from hpfracc_nn.fractional.torch.kernels.triton_op import OPERATION, applied

    arguments = given(definition, shape)
    x, dense = arguments[0], matrix(definition, shape[2])
    y = OPERATION(*arguments)
    torch.testing.assert_close(y.detach(), multiplied(dense, x, 2), rtol=1e-10, atol=1e-10)
    g = torch.ones_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, g)[0], multiplied(dense.T, g, 2), rtol=1e-10, atol=1e-9)
    of = weights(definition, shape[2])
    torch.testing.assert_close(applied(of.chunks(16), of.boundary, x), y)


def test_what_it_cannot_compute_is_refused() -> None:
    from hpfracc_nn.fractional.torch.kernels.triton_op import OPERATION, applied

    of = weights(RiemannLiouvilleIntegral(1.6), 40)
    with pytest.raises(ValueError, match="takes 0 to 2 differences"):
        applied(of.chunks(16), of.boundary, torch.ones(1, 1, 40, 1, dtype=torch.float64))
    x, intra, *rest = given(Caputo(0.5), SHAPES[0])
    y = OPERATION(x, intra.clone().requires_grad_(), *rest)
    with pytest.raises(RuntimeError, match="differentiable in the data only"):
        y.sum().backward()


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_finds_nothing_wrong_with_it(shape: tuple[int, ...]) -> None:
    from hpfracc_nn.fractional.torch.kernels.triton_op import OPERATION

    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = given(Caputo(0.5), shape)
    assert set(torch.library.opcheck(OPERATION, arguments, test_utils=tests).values()) == {"SUCCESS"}


def test_a_tracer_sees_its_shape_on_a_device_that_is_not_there() -> None:
    from hpfracc_nn.fractional.torch.kernels import triton_op  # noqa: F401  registers it

    arguments = given(Caputo(0.5), SHAPES[0])
    with FakeTensorMode():
        x, *rest = (
            torch.empty(each.shape, dtype=each.dtype, device="cuda") if isinstance(each, Tensor) else each
            for each in arguments
        )
        y = torch.ops.hpfracc_nn.chunked_scan(x, *rest)
    assert (y.shape, y.dtype, y.device.type) == (x.shape, x.dtype, "cuda")


def test_an_exported_program_holds_it_and_computes_the_same() -> None:
    from hpfracc_nn.fractional.torch.kernels.triton_op import applied

    class Net(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            of = weights_here
            return applied(of.chunks(16), of.boundary, x) + 1

    weights_here = weights(Caputo(0.5), 40)
    x = given(Caputo(0.5), SHAPES[0])[0].detach()
    program = torch.export.export(Net(), (x,))
    assert "hpfracc_nn.chunked_scan.default" in str(program.graph)
    torch.testing.assert_close(program.module()(x), Net()(x))


@pytest.mark.parametrize("name", MIXES)
def test_the_average_is_an_operation_too(name: str) -> None:
    from hpfracc_nn.training.torch.optimizers.kernels.triton_blocks import OPERATION

    mix, generator = MIXES[name], torch.Generator().manual_seed(0)
    grad = torch.randn(1100, dtype=torch.float64, generator=generator)
    rows = torch.randn(len(mix.weights), 1100, dtype=torch.float64, generator=generator)
    numbers = torch.tensor((mix.first, *mix.weights, *mix.gains), dtype=torch.float64)
    wanted, average = expected(grad, rows, mix), torch.empty_like(grad)
    OPERATION(grad, rows, average, numbers)
    torch.testing.assert_close((average, rows), wanted)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(OPERATION, (grad, rows, average, numbers), test_utils=tests)
    assert set(found.values()) == {"SUCCESS"}
