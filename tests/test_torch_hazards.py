"""What a call leaves behind in the process, and the corners where it once went wrong."""

import dataclasses
import gc
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import hpfracc_nn as fnn

LAYERS: list[Any] = [
    fnn.FractionalLayer(0.37),
    fnn.FractionalLayer(0.37, "riemann_liouville"),
    fnn.FractionalDifference(3),
]


def test_a_fake_call_gives_the_shape_and_leaves_no_fake_weights_behind() -> None:
    definition = fnn.Caputo(0.3371)
    with FakeTensorMode():
        fake = fnn.derivative(torch.empty(5, 200), definition)
    assert fake.shape == (5, 200)
    x = torch.randn(5, 200)
    assert torch.allclose(fnn.derivative(x, definition), fnn.derivative(x.double(), definition).float(), atol=1e-5)


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "equal steps": lambda x: fnn.caputo(x, 0.4),
    "learned": lambda x: fnn.caputo(x, torch.tensor(0.4, requires_grad=True)),
    "any times": lambda x: fnn.caputo(x, 0.4, t=np.arange(30.0) ** 1.5),
    "periodic": lambda x: fnn.derivative(x, fnn.PeriodicWeyl(0.4)),
}


@pytest.mark.parametrize("call", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_gradients_that_have_no_memory_of_their_own_are_followed(call: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(0, 3, 240).sin().reshape(2, 4, 30).requires_grad_()
    y = call(x)
    grads = [torch.randn_like(y), torch.randn_like(y)]
    wanted = [torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in grads]
    both: Any = torch.autograd.grad(y, x, TwoTensor(*grads), retain_graph=True)[0]
    # Two ways to add up some hundred products in float32.
    assert all(
        torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip((both.a, both.b), wanted, strict=True)
    )
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        (fake,) = torch.autograd.grad(y, x, mode.from_tensor(grads[0]))
    assert (type(fake), fake.shape) == (FakeTensor, x.shape)


def test_a_default_device_elsewhere_moves_no_working_memory() -> None:
    x = torch.randn(3, 5003)
    with torch.device("meta"):
        under = fnn.derivative(x, fnn.Caputo(0.4531))
    assert torch.equal(under, fnn.derivative(x, fnn.Caputo(0.4531)))


def test_a_meta_tensor_gives_its_shape() -> None:
    assert fnn.derivative(torch.empty(4, 70, device="meta"), fnn.Caputo(0.5)).shape == (4, 70)
    with torch.device("meta"):
        layer = fnn.FractionalLayer(0.5, learn_alpha=True)
    assert layer.order.raw.device.type == "meta"


def test_one_sample_of_very_many_signals() -> None:
    x = torch.randn(524289, 1)
    assert torch.equal(fnn.derivative(x, fnn.GrunwaldLetnikov(0.5)), x)


@pytest.mark.parametrize("alpha", [1.5, -0.5, float("nan")])
def test_a_tensor_order_outside_its_bounds_is_refused(alpha: float) -> None:
    message = (
        f"caputo(alpha={alpha}): needs a tensor alpha within its bounds (0, 1); "
        "pass bounds that hold it, such as bounds=(1, 2), or a float."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fnn.caputo(torch.randn(9), torch.tensor(alpha))


def test_a_tensor_order_inside_wider_bounds_agrees_with_the_float() -> None:
    x = torch.linspace(0, 1, 101, dtype=torch.float64) ** 2
    got = fnn.caputo(x, torch.tensor(1.5, dtype=torch.float64), bounds=(1, 2), dt=0.01)
    assert torch.allclose(got, fnn.caputo(x, 1.5, dt=0.01), atol=1e-9)  # rounding / dt**1.5


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_traced_graph_computes_what_the_layer_does(layer: torch.nn.Module) -> None:
    x, other = torch.randn(2, 3, 90), torch.randn(2, 3, 90)
    with torch.no_grad():
        graph = make_fx(lambda x: layer(x))(x)
        assert torch.allclose(graph(other), layer(other), atol=1e-5)  # float32, another order of summation


def test_jit_trace_is_refused_with_the_way_out() -> None:
    message = "FractionalLayer(x): torch.jit.trace cannot follow it; call it outside the traced part."
    with (
        pytest.raises(RuntimeError, match=re.escape(message)),
        pytest.warns((DeprecationWarning, FutureWarning), match="jit"),
    ):
        torch.jit.trace(fnn.FractionalLayer(0.5), torch.randn(2, 40))


def test_the_orders_of_a_fixed_bank_are_a_copy() -> None:
    bank = fnn.FractionalDifference(2, init=0.3, learn_alpha=False)
    bank.alpha.mul_(2)
    assert torch.equal(bank.alpha, torch.tensor([0.3, 0.3], dtype=torch.float64))


def test_a_lazily_negated_view_is_read_right() -> None:
    x = torch.randn(3, 200)
    assert torch.equal(fnn.derivative(torch._neg_view(x), fnn.Caputo(0.5)), fnn.derivative(-x, fnn.Caputo(0.5)))


def test_orders_that_are_not_numbers_are_refused() -> None:
    message = "FractionalDifference(init=nan): needs finite orders; pass values within (0, 1)."
    with pytest.raises(ValueError, match=re.escape(message)):
        fnn.FractionalDifference(2, init=float("nan"))


def test_an_array_in_a_layer_is_refused() -> None:
    message = "FractionalLayer(x of type ndarray): needs a torch tensor; pass torch.as_tensor(x)."
    with pytest.raises(TypeError, match=re.escape(message)):
        fnn.FractionalLayer(0.5)(np.ones(9))


@pytest.mark.parametrize("dt", [1e-12, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_of_any_size_keeps_every_weight(dt: float, dtype: torch.dtype) -> None:
    x = torch.randn(3, 200, dtype=dtype)
    scaled, plain = (fnn.derivative(x, fnn.GrunwaldLetnikov(2.0), dt=step).double() for step in (dt, 1.0))
    tolerance = 4e-6 if dtype == torch.float32 else 4e-14  # 200 roundings of the weights' scale and sums, at most
    assert (scaled * dt**2 - plain).abs().max() <= tolerance * plain.abs().max()


@pytest.mark.parametrize("dim", [True, 1.0])
def test_an_axis_that_only_equals_one_is_refused_at_every_call(dim: object) -> None:
    x = torch.randn(3, 50)
    fnn.derivative(x, fnn.Caputo(0.5), dim=1)
    with pytest.raises(TypeError, match="needs an integer"):
        fnn.derivative(x, fnn.Caputo(0.5), dim=dim)  # type: ignore[arg-type]


def test_plans_are_of_the_axis_and_the_channels_that_the_call_has() -> None:
    x = torch.randn(2, 16, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    manager = fnn.BackendManager()
    for dim, orders in ((1, alpha), (2, alpha), (2, alpha.expand(16))):
        definition = fnn.GrunwaldLetnikov(orders, bounds=(-1, 2))
        found = fnn.derivative(x, definition, dim=dim, manager=manager).detach()
        assert torch.allclose(found, fnn.derivative(x, fnn.GrunwaldLetnikov(0.5), dim=dim), atol=1e-9)
    workloads = {(row.n, row.width, row.channels) for row in (plan.workload for plan in manager.sites()[0].plans())}
    assert {(16, 300, 1), (300, 1, 1), (300, 1, 16)} <= workloads


@dataclasses.dataclass(frozen=True)
class Scaled(fnn.GrunwaldLetnikov):
    """A definition with a field of its own."""

    gain: float = 1.0

    def stencil_at(self, *arguments: Any, **options: Any) -> Any:
        stencil = super().stencil_at(*arguments, **options)
        column = stencil.column
        return dataclasses.replace(stencil, column=lambda lags: self.gain * column(lags))


def test_a_definition_of_your_own_keeps_its_fields_when_its_order_is_learned() -> None:
    x = torch.randn(3, 200, dtype=torch.float64)
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    plain = 3 * fnn.derivative(x, fnn.GrunwaldLetnikov(0.5))
    for order in (0.5, alpha):
        assert torch.allclose(fnn.derivative(x, Scaled(order, gain=3.0)), plain, atol=1e-11)
    assert Scaled(0.5, gain=3.0).at(0.6) == Scaled(0.6, gain=3.0)


def test_layers_that_are_gone_leave_nothing_behind() -> None:
    manager = fnn.BackendManager()
    x = torch.randn(2, 40)
    for _ in range(300):
        fnn.FractionalLayer(0.5, manager=manager)(x)
    gc.collect()
    manager.site("toeplitz", "torch")
    assert len(manager.recorder.counts._ended) <= 64
    assert manager.counters()["forward"] == 300


def test_a_changed_step_is_checked_at_the_call() -> None:
    layer = fnn.FractionalLayer(0.5)
    layer.dt = 0.0
    with pytest.raises(ValueError, match="needs a finite dt > 0"):
        layer(torch.randn(3, 40))


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "derivative": lambda x: fnn.derivative(x, fnn.Caputo(0.5)),
    "FractionalLayer": fnn.FractionalLayer(0.5, channels=3),
    "FractionalDifference": fnn.FractionalDifference(3),
    "FractionalLayer.step": lambda x: LAYERS[0].step(x, LAYERS[0].initial_state((2, 3, 8))),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.sparse_coo": lambda x: x.to_sparse(),
    "torch.sparse_csr": lambda x: x.to_sparse_csr(),
    "torch.sparse_bsc": lambda x: x.to_sparse_bsc((1, 2)),
    "torch._mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_that_are_not_dense_are_refused(name: str, layout: str) -> None:
    call, x = CALLS[name], torch.rand(2, 3, 8)
    call(x)  # the plan for dense samples of this shape is there
    message = f"{name}(x of layout {layout}): needs a dense tensor; pass x.to_dense()."
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        call(LAYOUTS[layout](x))


def nested(layout: torch.layout) -> Tensor:
    """Return series of two lengths: of the old layout with time last, of the new one with time first."""
    rows = [torch.rand(3, 5), torch.rand(3, 8)] if layout is torch.strided else [torch.rand(5, 3), torch.rand(8, 3)]
    return torch.nested.nested_tensor(rows, layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("name", "layout"),
    [*((name, torch.strided) for name in CALLS), ("derivative", torch.jagged), ("FractionalLayer.step", torch.jagged)],
)
def test_nested_samples_are_refused(name: str, layout: torch.layout) -> None:
    message = (
        f"{name}(x: nested tensor): needs rows of one length; take them one by one from x.unbind(), or pass "
        "torch.nested.to_padded_tensor(x, 0.0) and leave out what it gives on the padding; FractionalLayer, "
        "Linear, Conv1d, Difference and ARFIMA take the layout torch.jagged."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        CALLS[name](nested(layout))


@pytest.mark.parametrize("name", ["FractionalLayer", "FractionalDifference"])
def test_jagged_samples_lie_along_the_time_axis(name: str) -> None:
    message = (
        f"{name}(x with the ragged axis 1): needs the series along the layer's time axis, 2; pass x.transpose(1, 2)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CALLS[name](nested(torch.jagged))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
def test_an_order_that_is_not_dense_is_refused(layout: str) -> None:
    alpha = LAYOUTS[layout](torch.full((2, 4), 0.5))
    message = f"caputo(alpha of layout {layout}): needs a dense tensor; pass alpha.to_dense()."
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        fnn.caputo(torch.rand(2, 4, 9), alpha)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")
def test_a_child_computes_though_its_parent_was_planning() -> None:
    manager, held, done = fnn.BackendManager(), threading.Event(), threading.Event()

    def plan_for_long() -> None:
        with manager.lock:
            held.set()
            done.wait()

    planner = threading.Thread(target=plan_for_long)
    planner.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            y = fnn.derivative(torch.ones(3, 53), fnn.GrunwaldLetnikov(0.61), manager=manager)
            status = 0 if y.isfinite().all() else 2
        finally:
            os._exit(status)
    done.set()
    planner.join()
    for _ in range(600):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child waits for a lock that nobody holds")
    assert os.waitstatus_to_exitcode(status) == 0
