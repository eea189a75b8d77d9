"""The largest batch: right where the peak is known by a formula, and nothing of the user's is changed."""

import pathlib
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import hpfracc_nn as fnn  # noqa: E402
from hpfracc_nn.selection import default_manager  # noqa: E402
from hpfracc_nn.training import suggest_batch_size  # noqa: E402
from hpfracc_nn.training.torch import batch_size  # noqa: E402

WIDTH = 256
ROW = 4 * WIDTH  # bytes of one float32 row


class Copies(nn.Module):
    """Returns the batch `count` times; with `temporary`, after so many bytes were taken and given back."""

    def __init__(self, count=7, temporary=0):
        super().__init__()
        self.count, self.temporary = count, temporary

    def forward(self, x):
        if self.temporary:
            torch.empty(self.temporary, dtype=torch.uint8)
        return torch.cat([x] * self.count, dim=1)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class Similarities(nn.Module):
    def forward(self, x):
        return x @ x.mT


def rows_of(count=1):
    return torch.ones(count, WIDTH)


@pytest.mark.parametrize(("size", "limit"), [(1, 123_456), (3, 10_000_000), (5, "16MiB")])
def test_a_forward_pass_takes_its_batch_and_its_result(size, limit):
    found = suggest_batch_size(Copies(), rows_of(size), memory_limit=limit, backward=False)
    assert found == (16 << 20 if limit == "16MiB" else limit) // (8 * ROW)


@pytest.mark.parametrize("outputs", [1, 100])
def test_a_linear_layer_takes_its_batch_results_their_gradients_and_the_weights(outputs):
    layer, limit = nn.Linear(WIDTH, outputs, bias=False), 5_000_000
    found = suggest_batch_size(layer, rows_of(), memory_limit=limit)
    assert found == (limit - outputs * ROW) // (ROW + 2 * 4 * outputs)


def test_a_gradient_in_the_sample_is_counted():
    sample, limit = rows_of().requires_grad_(), 5_000_000
    found = suggest_batch_size(Doubled(), sample, memory_limit=limit)
    assert found == limit // (4 * ROW)  # batch, result and a gradient of each


def test_growth_with_the_square_of_the_batch_is_foreseen():
    limit = 1 << 28
    found = suggest_batch_size(Similarities(), rows_of(), memory_limit=limit, backward=False)
    assert ROW * found + 4 * found**2 <= limit < ROW * (found + 1) + 4 * (found + 1) ** 2


def test_gradients_of_weights_that_count_most_in_small_batches_do_not_hide_what_counts_in_large_ones():
    hidden, limit = 8 * WIDTH, 1 << 26
    net = nn.Sequential(nn.Linear(WIDTH, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, WIDTH, bias=False))
    found = suggest_batch_size(net, rows_of(), memory_limit=limit)
    # While the ReLU is differentiated there are the batch, the result and its gradient, three times the hidden samples
    # (what the ReLU saved and the gradients on both sides of it), and one of the two gradients of weights.
    assert found == (limit - hidden * ROW) // (3 * ROW + 3 * 4 * hidden)


class InTurn(nn.Module):
    """Keeps a copy of each row for itself: the number of requests grows with the batch."""

    def forward(self, x):
        return torch.cat([row.clone()[None] for row in x])


class Switching(nn.Module):
    """Takes another way from 40 rows on, with twice the memory."""

    def forward(self, x):
        return x.repeat(1, 4) if len(x) < 40 else torch.cat([x.repeat(1, 4), x.repeat(1, 4)], 1)


@pytest.mark.parametrize(("module", "row"), [(InTurn(), 3 * ROW), (Switching(), 17 * ROW)])
def test_requests_that_differ_with_the_batch_are_followed(module, row):
    found = suggest_batch_size(module, rows_of(), memory_limit=1 << 24, backward=False)
    assert found == pytest.approx((1 << 24) / row, rel=0.02)  # below a row's own bytes, its index counts too


def test_what_is_given_back_before_the_growth_begins_is_not_extrapolated():
    temporary, limit = 64 * 8 * ROW, 1 << 26
    found = suggest_batch_size(Copies(temporary=temporary), rows_of(), memory_limit=limit, backward=False)
    assert found == limit // (8 * ROW)


def test_where_all_that_comes_into_question_fits_it_is_that():
    for most in (1, 2, 3, 100, 1000):
        assert suggest_batch_size(Copies(), rows_of(), memory_limit="1GiB", backward=False, most=most) == most


@pytest.mark.parametrize("fitting", [1, 2, 3])
def test_a_limit_of_a_few_rows_is_met(fitting):
    limit = fitting * 8 * ROW + ROW
    assert suggest_batch_size(Copies(), rows_of(), memory_limit=limit, backward=False) == fitting


def test_less_than_a_row_is_an_error_with_the_way_out():
    message = (
        f"suggest_batch_size: needs room for one row, and it takes more than the {7 * ROW} bytes there are; "
        "raise memory_limit, free memory, or make the module or its input smaller."
    )
    with pytest.raises(MemoryError, match=f"^{re.escape(message)}$"):
        suggest_batch_size(Copies(), rows_of(), memory_limit=7 * ROW, backward=False)


def test_batches_that_are_run_stay_below_the_limit():
    ran = []

    class Watched(Copies):
        def forward(self, x):
            ran.append(len(x))
            return super().forward(x)

    limit = 60 * 8 * ROW
    assert suggest_batch_size(Watched(), rows_of(), memory_limit=limit, backward=False) == 60
    assert max(ran) * 8 * ROW <= limit


def test_the_settings_of_the_manager_are_the_default(monkeypatch):
    monkeypatch.setattr(
        default_manager().planner, "settings", replace(default_manager().settings, memory_limit=1_000_000)
    )
    assert suggest_batch_size(Copies(), rows_of(), backward=False) == 1_000_000 // (8 * ROW)


def test_a_fraction_is_of_what_is_free(monkeypatch):
    monkeypatch.setattr(batch_size, "free", lambda framework, device: 2_000_000)
    assert suggest_batch_size(Copies(), rows_of(), memory_limit=0.5, backward=False) == 1_000_000 // (8 * ROW)


class Model(nn.Module):
    """Everything that a forward pass may change: buffers, its mode, randomness; and several ways to be called."""

    calls: Any

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.fractional = fnn.FractionalLayer(0.5, learn_alpha=True)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", None)
        self.shapes = set()

    def forward(self, x, scale=None):
        self.calls += 1
        self.last = x.detach()
        y = self.drop(self.fractional(self.norm(x)))
        self.drop.eval()
        return {"y": (y, [y if scale is None else y * scale[:, None]]), "n": len(x)}


SAMPLES = {
    "tensor": rows_of(3),
    "tuple": (rows_of(3), torch.ones(3)),
    "list": [rows_of(3)],
    "dict": {"scale": torch.ones(3), "x": rows_of(3)},
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("backward", [True, False])
def test_nothing_of_the_users_is_changed(sample, backward):
    torch.manual_seed(7)
    model = Model()
    model(rows_of(3))["y"][0].sum().backward()
    model.train()
    model.norm.eval()
    model.fractional.order.register_forward_hook(lambda *_: None)
    buffers = {name: (buffer, buffer.clone(), buffer._version) for name, buffer in model.named_buffers()}
    parameters = {name: (p, p.grad, p._version, torch.clone(p.grad)) for name, p in model.named_parameters()}
    modes, random = [part.training for part in model.modules()], torch.get_rng_state()

    assert suggest_batch_size(model, sample, memory_limit="1MiB", backward=backward) > 1

    assert set(dict(model.named_buffers())) == set(buffers)
    for name, buffer in model.named_buffers():
        same, value, version = buffers[name]
        assert buffer is same
        assert torch.equal(buffer, value)
        assert buffer._version == version
    for name, parameter in model.named_parameters():
        same, gradient, version, value = parameters[name]
        assert parameter is same
        assert parameter.grad is gradient
        assert torch.equal(parameter.grad, value)
        assert parameter._version == version
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


def test_all_is_put_back_where_the_module_fails():
    class Failing(nn.BatchNorm1d):
        def forward(self, x):
            y = super().forward(x)
            if len(x) > 4:
                raise ArithmeticError("too many")
            return y

    model = Failing(WIDTH)
    mean, random = model.running_mean, torch.get_rng_state()
    with pytest.raises(ArithmeticError, match="too many") as caught:
        suggest_batch_size(model, rows_of())
    assert caught.value.__notes__ == ["while suggest_batch_size tried a batch of 12"]
    assert model.running_mean is mean
    assert torch.equal(mean, torch.zeros(WIDTH))
    assert torch.equal(torch.get_rng_state(), random)


FAULTS = [
    ((Copies, rows_of(), {}), TypeError, "suggest_batch_size(module of type type): needs a torch.nn.Module."),
    ((Copies(), 3, {}), TypeError, "suggest_batch_size(sample): needs a tensor, or a tuple, list or dict of tensors"),
    ((Copies(), (), {}), TypeError, "suggest_batch_size(sample): needs a tensor, or a tuple"),
    ((Copies(), (rows_of(), 3), {}), TypeError, "suggest_batch_size(sample): needs a tensor, or a tuple"),
    ((Copies(), rows_of(0), {}), ValueError, "suggest_batch_size(sample of shapes (0, 256)): needs the batch as axis"),
    ((Copies(), torch.ones(()), {}), ValueError, "suggest_batch_size(sample of shapes ()): needs the batch as axis 0"),
    (
        (Copies(), (rows_of(2), rows_of(3)), {}),
        ValueError,
        "suggest_batch_size(sample of shapes (2, 256), (3, 256)): needs the batch as axis 0, of one row or more",
    ),
    ((Copies(), rows_of(), {"most": 0}), ValueError, "suggest_batch_size(most=0): needs most >= 1"),
    ((Copies(), rows_of(), {"memory_limit": "much"}), ValueError, "memory_limit='much': needs a whole number of"),
    ((Copies(), rows_of(), {"memory_limit": True}), TypeError, "memory_limit=True: needs a whole number of bytes"),
    ((Copies(), rows_of(), {"device": "meta"}), ValueError, "(device='meta'): needs a device of type cpu or cuda."),
    (
        (nn.Linear(WIDTH, 1, device="meta"), rows_of(), {"device": "cpu"}),
        ValueError,
        "suggest_batch_size(device='cpu'): needs all parameters there, and they are on meta; move the module with "
        "module.to('cpu').",
    ),
    ((nn.LazyLinear(3), rows_of(), {}), ValueError, "has parameters that wait for a first batch; run it on the sample"),
    (
        (Copies(), rows_of(), {}),
        ValueError,
        "suggest_batch_size(backward=True): needs a result with a gradient in a parameter or in the sample; there is",
    ),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), FAULTS)
def test_a_bad_argument_is_refused_with_the_way_out(arguments, kind, message):
    module, sample, options = arguments
    with pytest.raises(kind, match=re.escape(message)):
        suggest_batch_size(module, sample, **options)


def test_an_unknown_amount_of_free_memory_is_said(monkeypatch):
    monkeypatch.setattr(batch_size, "limit", lambda *_: None)
    with pytest.raises(ValueError, match="does not say what is free; pass a limit in bytes"):
        suggest_batch_size(Copies(), rows_of(), backward=False)


def test_inside_a_profiler_it_refuses():
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(RuntimeError, match="measures by a profiler, and one is running"),
    ):
        suggest_batch_size(Copies(), rows_of(), backward=False)


class Allocator:
    """A GPU's allocator made up: it runs out above `capacity` bytes, and knows its peak."""

    def __init__(self, monkeypatch, capacity):
        self.capacity, self.peak, self.emptied = capacity, 0, 0
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 100 + self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: setattr(self, "peak", 0))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(self, "emptied", self.emptied + 1))
        monkeypatch.setattr(batch_size, "_place", lambda *_: torch.device("cuda", 0))
        monkeypatch.setattr(batch_size, "_run", lambda _module, _sample, rows, *_: self.run(rows))
        monkeypatch.setattr(torch.random, "fork_rng", lambda _: torch.no_grad())

    def run(self, rows):
        if 10 * rows > self.capacity:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        self.peak = 10 * rows


@pytest.mark.slow
@pytest.mark.parametrize("fitting", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("by", ["capacity", "limit"])
def test_on_a_gpu_the_largest_batch_is_found_by_trying(monkeypatch, fitting, by):
    most = 10 * fitting + 9
    allocator = Allocator(monkeypatch, most if by == "capacity" else 10**9)
    monkeypatch.setattr(batch_size, "free", lambda *_: 10**9 if by == "capacity" else most)
    assert suggest_batch_size(Copies(), rows_of(), memory_limit=1.0) == fitting
    assert (allocator.emptied > 0) == (by == "capacity")


@pytest.mark.slow
def test_on_a_gpu_where_no_row_fits_it_is_said(monkeypatch):
    Allocator(monkeypatch, capacity=9)
    monkeypatch.setattr(batch_size, "free", lambda *_: 1000)
    with pytest.raises(MemoryError, match="needs room for one row"):
        suggest_batch_size(Copies(), rows_of(), memory_limit=1.0)


@pytest.mark.gpu
def test_on_a_real_gpu_the_next_batch_is_above_the_limit():
    layer, limit = nn.Linear(WIDTH, 100, bias=False).cuda(), 50_000_000
    found = suggest_batch_size(layer, rows_of(), memory_limit=limit)
    # What a batch takes exactly, less the rounding of five blocks to 512 bytes and cuBLAS's workspace.
    exact = (limit - 100 * ROW) // (ROW + 800)
    assert 0.6 * exact <= found <= exact


@pytest.mark.gpu
def test_on_a_real_gpu_running_out_of_memory_is_survived():
    free, _ = torch.cuda.mem_get_info()
    row = torch.ones(1, free // 64, dtype=torch.uint8, device="cuda")
    found = suggest_batch_size(Copies(7), row, memory_limit=1.0, backward=False, most=64)
    assert 4 <= found <= 8  # 8 / 64 of what was free per row: eight, less what fragments
    assert torch.cuda.memory_allocated() < free // 32


RESIDENT = """
import pathlib, sys, torch
from torch import nn
from hpfracc_nn.training import suggest_batch_size

def resident(key):
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.split(key + ":")[1].split()[0])

layers = nn.Sequential(nn.Conv1d(4, 32, 9, padding=4), nn.GELU(), nn.Conv1d(32, 4, 9, padding=4))
sample = torch.randn(1, 4, 1024)
rows = suggest_batch_size(layers, sample, memory_limit="512MiB")
before = resident("VmRSS")
layers(torch.randn(rows, 4, 1024)).square().mean().backward()
print(rows, resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").is_file(), reason="needs procfs")
def test_the_batch_takes_the_resident_memory_that_was_given():
    command = [sys.executable, "-c", RESIDENT]
    done = subprocess.run(
        command, cwd=pathlib.Path(__file__).parents[1], capture_output=True, text=True, timeout=300, check=True
    )
    rows, resident = map(int, done.stdout.split())
    assert rows > 100
    # Pages that were resident before are used again, and oneDNN keeps buffers of its own.
    assert 0.6 < resident / (512 << 20) < 1.25


@pytest.mark.slow
def test_the_name_is_loaded_when_it_is_asked_for():
    source = (
        "import sys, hpfracc_nn.training as training; assert 'torch' not in sys.modules; "
        "training.suggest_batch_size; print('lightning' in sys.modules)"
    )
    command = [sys.executable, "-c", source]
    done = subprocess.run(
        command, cwd=pathlib.Path(__file__).parents[1], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "False\n"


def test_without_torch_the_extra_is_named():
    source = "import sys; sys.modules['torch'] = None; import hpfracc_nn.training as t; t.suggest_batch_size"
    command = [sys.executable, "-c", source]
    done = subprocess.run(
        command, cwd=pathlib.Path(__file__).parents[1], capture_output=True, text=True, timeout=120, check=False
    )
    assert "needs the package 'torch'; pip install 'hpfracc-nn[torch]'." in done.stderr
