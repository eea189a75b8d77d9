"""What every layer promises, on every case in `tests/layer_cases`."""

from __future__ import annotations

import copy
import io
import pickle
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import hpfracc_nn.layers
from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.selection import BackendManager, Settings, Site
from tests.layer_cases import LayerCase, all_cases, arrays, mapped, tensors

CASES = all_cases()
every = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
FIRST = {case.layer: case for case in reversed(CASES)}  # in the fast suite; the formula is tested on all
each = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c is FIRST[c.layer] else pytest.mark.slow, id=c.id) for c in CASES],
)
STREAMING = [case for case in CASES if case.time is not None]
streaming = pytest.mark.parametrize("case", STREAMING, ids=[case.id for case in STREAMING])
LIMITED = [case for case in CASES if case.limit is not None]
REFUSALS = [(case.id, *refusal) for case in CASES for refusal in case.refusals]
BATCHED = [case for case in CASES if case.is_batched]


@pytest.fixture
def manager() -> BackendManager:
    return BackendManager(Settings(mode="prior", calibration="shipped"))


def outputs(value: Any) -> list[Tensor]:
    return list(tensors(value))


def close(found: Any, expected: Any, tolerance: float) -> None:
    """Assert that nested results agree, each to `tolerance` of its largest entry."""
    found, expected = outputs(found), outputs(mapped(torch.as_tensor, expected))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        one, other = one.detach(), other.detach()
        scale = float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one.to(other), other, rtol=0, atol=tolerance * max(scale, 1e-300))


def called(layer: nn.Module, inputs: tuple[Any, ...]) -> Any:
    torch.manual_seed(3)  # for the layers that draw
    return layer(*inputs)


def scalar(result: Any) -> Tensor:
    """Return a smooth number that depends on every entry of the result."""
    return torch.stack(
        [
            (out.double() * torch.linspace(1, 2, out.numel() or 1).reshape(out.shape)).square().sum()
            if out.numel()
            else out.double().sum()
            for out in outputs(result)
        ]
    ).sum()


def leaves(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs with gradients asked of those that can have any."""
    return mapped(lambda x: x.detach().clone().requires_grad_(x.is_floating_point()), inputs)


def gradients(call: Callable[..., Any], layer: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    inputs = leaves(inputs)
    wanted = [x for x in tensors(inputs) if x.requires_grad] + list(layer.parameters())
    torch.manual_seed(3)
    found = torch.autograd.grad(scalar(call(*inputs)), wanted, allow_unused=True, materialize_grads=True)
    return list(found)


def test_every_layer_has_a_case() -> None:
    names = [getattr(hpfracc_nn.layers, name) for name in vars(hpfracc_nn.layers)["__all__"]]
    layers = [kind for kind in names if isinstance(kind, type) and issubclass(kind, nn.Module)]
    missing = [
        kind.__name__
        for kind in layers
        if not issubclass(kind, Alpha) and not any(issubclass(case.layer, kind) for case in CASES)
    ]
    assert not missing


@every
@pytest.mark.parametrize("number", [0, 1, 2])
@torch.no_grad()
def test_it_computes_the_formula_of_its_docstring(case: LayerCase, number: int) -> None:
    layer, inputs = case.make(case.alphas[number]), case.draw(seed=number)
    torch.manual_seed(3)
    expected = case.reference(layer, *arrays(inputs))
    close(called(layer, inputs), expected, 1e-9)  # learned orders: exponentials fitted to 1e-12, sums of some hundred


@pytest.mark.parametrize("case", LIMITED, ids=[case.id for case in LIMITED])
@torch.no_grad()
def test_at_its_integer_limit_it_is_the_ordinary_layer(case: LayerCase) -> None:
    assert case.limit is not None
    alpha, ordinary = case.limit
    layer, inputs = case.make(alpha, learn_alpha=False), case.draw()
    close(called(layer, inputs), ordinary(layer)(*inputs), 1e-12)


@each
def test_gradients_in_inputs_weights_and_alpha_are_those_of_differences(case: LayerCase) -> None:
    layer, inputs = case.make(), leaves(case.draw())
    names = [name for name, _ in layer.named_parameters()]
    values = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]
    floats = [x for x in tensors(inputs) if x.requires_grad]

    def run(*given: Tensor) -> Any:
        remaining = iter(given[len(values) :])
        arguments = mapped(lambda x: next(remaining) if x.requires_grad else x, inputs)
        torch.manual_seed(3)
        found = torch.func.functional_call(layer, dict(zip(names, given, strict=False)), arguments)
        return tuple(out for out in tensors(found) if out.requires_grad)

    assert gradcheck(run, (*values, *floats), fast_mode=True, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.second], ids=[c.id for c in CASES if c.second])
def test_second_gradients_are_those_of_differences(case: LayerCase) -> None:
    layer, inputs = case.make(), leaves(case.draw())
    names = [name for name, _ in layer.named_parameters()]
    values = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]

    def run(*given: Tensor) -> Tensor:
        torch.manual_seed(3)
        return scalar(torch.func.functional_call(layer, dict(zip(names, given, strict=True)), inputs))

    assert gradgradcheck(run, values, fast_mode=True, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case.second], ids=[c.id for c in CASES if c.second])
def test_first_gradients_are_the_same_where_second_ones_may_follow(case: LayerCase) -> None:
    """The inputs depend on the weights and on each other, as those of a layer behind another with the same order do."""
    layer, inputs = case.make(), case.draw()
    weights = list(layer.parameters())

    def found(creates: bool) -> list[Tensor]:
        shift = torch.stack([weight.sin().sum() for weight in weights]).sum()
        moved = []
        for x in tensors(inputs):
            moved.append(x + 0.1 * shift if x.is_floating_point() else x)
            shift = shift + moved[-1].sin().sum() if x.is_floating_point() else shift
        remaining = iter(moved)
        result = called(layer, mapped(lambda x: next(remaining), inputs))
        return list(torch.autograd.grad(scalar(result), weights, create_graph=creates))

    for one, other in zip(found(True), found(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9 * float(other.abs().max()))


@each
def test_alpha_changes_the_result_and_has_a_gradient(case: LayerCase) -> None:
    inputs = case.draw()
    one, other = case.make(case.alphas[0]), case.make(case.alphas[2])
    other.load_state_dict({**one.state_dict(), **{n: v for n, v in other.state_dict().items() if n.endswith("raw")}})
    first = called(one, inputs)
    pairs = zip(tensors(first), tensors(called(other, inputs)), strict=True)
    changes = [float((x - y).detach().abs().max()) for x, y in pairs]
    assert max(changes) > 1e-3
    scalar(first).backward()
    orders = [parameter for module in one.modules() if isinstance(module, Alpha) for parameter in module.parameters()]
    assert orders
    assert all(parameter.grad is not None and bool((parameter.grad != 0).all()) for parameter in orders)


@streaming
@torch.no_grad()
def test_one_sample_at_a_time_is_the_whole_series(case: LayerCase) -> None:
    assert case.time is not None
    layer, (x, *rest) = case.make(), case.draw()
    whole = outputs(called(layer, (x, *rest)))[0]
    axis = case.time % x.ndim
    state, found = layer.initial_state((*x.shape[:axis], *x.shape[axis + 1 :])), []
    for sample in x.unbind(axis):
        y, state = layer.step(sample, state)
        found.append(y)
    close(torch.stack(found, case.time), whole, 1e-9)


@streaming
@torch.no_grad()
def test_a_state_is_loaded_as_weights_are(case: LayerCase) -> None:
    assert case.time is not None
    layer, (x, *_) = case.make(), case.draw()
    sample = x.select(case.time % x.ndim, 0)
    _, state = layer.step(sample, layer.initial_state(sample.shape))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    close(layer.step(sample, loaded)[0], layer.step(sample, state)[0], 0)


@each
def test_copies_compute_the_same_and_share_nothing(case: LayerCase) -> None:
    layer, inputs = case.make(), case.draw()
    expected = called(layer, inputs)
    other = case.make(case.alphas[0], seed=2)
    other.load_state_dict(layer.state_dict())
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        close(called(copied, inputs), expected, 0)
        pairs = zip(copied.parameters(), layer.parameters(), strict=True)
        assert all(one.data_ptr() != another.data_ptr() for one, another in pairs)


@each
@torch.no_grad()
def test_float32_and_half_precision_follow_the_inputs(case: LayerCase) -> None:
    exact = case.make()
    expected = called(exact, case.draw())
    # float32: 6e-8 per operation over some hundred; bfloat16 has 8 bits, and inputs and weights are rounded to it
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.3)):
        layer = case.make(dtype=dtype)
        layer.load_state_dict(exact.state_dict())  # torch draws other numbers in another dtype
        found = called(layer, case.draw(dtype))
        assert all(out.dtype == dtype for out in tensors(found) if out.is_floating_point())
        close(mapped(lambda out: out.double(), found), expected, tolerance)


@each
def test_a_noncontiguous_input_gives_the_same_result_and_gradients(case: LayerCase) -> None:
    layer, inputs = case.make(), case.draw()

    def spread(x: Tensor) -> Tensor:
        wide = torch.zeros(*x.shape, 2, dtype=x.dtype)
        wide[..., 0] = x
        return wide[..., 0]

    strided = mapped(lambda x: spread(x) if x.ndim else x, inputs)
    assert not all(x.is_contiguous() for x in tensors(strided) if x.numel() > 1)
    close(called(layer, strided), called(layer, inputs), 1e-12)

    def of_strided(*given: Any) -> Any:
        return layer(*mapped(lambda x: spread(x) if x.ndim else x, given))

    for one, other in zip(gradients(of_strided, layer, inputs), gradients(layer, layer, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", BATCHED, ids=[case.id for case in BATCHED])
def test_an_empty_batch_gives_an_empty_result(case: LayerCase) -> None:
    layer = case.make()
    result = called(layer, leaves(case.draw(batch=0)))
    assert any(out.numel() == 0 for out in tensors(result))
    scalar(result).backward()


@each
def test_autocast_computes_what_the_plain_call_does(case: LayerCase) -> None:
    layer, inputs = case.make(dtype=torch.float32), case.draw(torch.float32)
    expected = called(layer, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = called(layer, inputs)
    close(mapped(lambda out: out.float(), found), mapped(lambda out: out.detach(), expected), 0.1)  # 8 bits
    for gradient in torch.autograd.grad(scalar(found), list(layer.parameters())):
        assert gradient.dtype == torch.float32
        assert bool(gradient.isfinite().all())


@each
def test_checkpointing_changes_no_gradient(case: LayerCase) -> None:
    layer, inputs = case.make(), case.draw()

    def again(*given: Any) -> Any:
        return checkpoint(layer, *given, use_reentrant=False)

    for one, other in zip(gradients(again, layer, inputs), gradients(layer, layer, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@each
def test_the_manager_is_asked_and_the_kernels_count(case: LayerCase, manager: BackendManager) -> None:
    layer, inputs = case.make(manager=manager), leaves(case.draw())
    scalar(called(layer, inputs)).backward()
    if not case.chooses:
        assert manager.sites() == []
        return
    sites = [site for module in layer.modules() if isinstance(site := getattr(module, "site", None), Site)]
    plans = [plan for site in sites for plan in site.plans()]
    before = [(plan.forwards, plan.backwards, sum(plan.kernel.calls.values())) for plan in plans]
    assert sum(forwards for forwards, _, _ in before) > 0
    assert sum(backwards for _, backwards, _ in before) > 0
    scalar(called(layer, inputs)).backward()
    for plan, (forwards, backwards, calls) in zip(plans, before, strict=True):
        assert (plan.forwards, plan.backwards) == (2 * forwards, 2 * backwards)
        assert sum(plan.kernel.calls.values()) > calls


@each
def test_parameters_are_made_where_and_as_they_are_asked_for(case: LayerCase) -> None:
    layer = case.make(device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float16)}
    moved = layer.to_empty(device="cpu").to(torch.float32)
    assert {(p.device.type, p.dtype) for p in moved.parameters()} == {("cpu", torch.float32)}


@each
def test_it_says_what_it_is_and_knows_training_from_evaluation(case: LayerCase) -> None:
    layer = case.make()
    assert "alpha" in repr(layer)
    assert "0x" not in repr(layer)
    layer.eval()
    assert not any(module.training for module in layer.modules())
    layer.train()
    assert all(module.training for module in layer.modules())


@pytest.mark.parametrize(
    ("case", "name", "call", "kind", "message"), REFUSALS, ids=[f"{r[0]}-{r[1]}" for r in REFUSALS]
)
def test_bad_input_is_refused_with_the_rule(
    case: str, name: str, call: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
        yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the compiler tells about its own parts
@pytest.mark.parametrize("case", [c for c in CASES if not c.is_random], ids=[c.id for c in CASES if not c.is_random])
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_computes_the_same_in_one_graph(case: LayerCase) -> None:
    layer, inputs = case.make(), case.draw()
    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    close(compiled(*inputs), called(layer, inputs), 1e-10)
    for one, other in zip(gradients(compiled, layer, inputs), gradients(layer, layer, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [c for c in CASES if not c.is_random], ids=[c.id for c in CASES if not c.is_random])
@torch.no_grad()
def test_an_exported_layer_computes_the_same(case: LayerCase) -> None:
    layer, inputs = case.make(), case.draw()
    program: Any = torch.export.export(layer, inputs)
    close(program.module()(*inputs), called(layer, inputs), 1e-10)


@pytest.mark.gpu
@each
def test_a_gpu_computes_the_same(case: LayerCase) -> None:
    layer, inputs = case.make(), case.draw()
    moved = copy.deepcopy(layer).to("cuda")
    on_device = mapped(lambda x: x.to("cuda"), inputs)
    close(mapped(lambda out: out.cpu(), called(moved, on_device)), called(layer, inputs), 1e-9)


def _synchronised(rank: int, port: int, results: Any) -> None:
    """Take one step of every case in two processes, each with data of its own."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        for number, case in enumerate(all_cases()):
            layer = case.make()
            replica = nn.parallel.DistributedDataParallel(layer)
            torch.manual_seed(3)
            scalar(replica(*case.draw(seed=rank))).backward()
            gradients = [np.zeros(0) if p.grad is None else p.grad.numpy() for p in layer.parameters()]
            results.put((rank, number, gradients))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_average_the_gradients_of_every_layer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = torch.multiprocessing.get_context("spawn").Manager().Queue()
    torch.multiprocessing.spawn(_synchronised, (port, queue), nprocs=2, join=True)
    found = {}
    while not queue.empty():
        rank, number, given = queue.get()
        found[rank, number] = given
    for number, case in enumerate(CASES):
        layer = case.make()
        single = [gradients(layer, layer, case.draw(seed=rank)) for rank in (0, 1)]
        count = len(list(layer.parameters()))
        for rank in (0, 1):
            expected = [(one + other) / 2 for one, other in zip(*(grads[-count:] for grads in single), strict=True)]
            for one, other in zip(found[rank, number], expected, strict=True):
                np.testing.assert_allclose(one, other.numpy(), rtol=1e-8, atol=1e-10, err_msg=case.id)
