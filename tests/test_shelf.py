"""What is kept of weights stays within its bytes, whatever is made of them later, and is dropped without harm."""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hpfracc_nn as fnn
from hpfracc_nn.fractional import weights
from hpfracc_nn.fractional.cache import _OBJECTS, Account, Shelf
from hpfracc_nn.fractional.numpy.weights import weights_of as numpy_weights_of
from hpfracc_nn.fractional.torch.weights import weights_of
from hpfracc_nn.selection import BackendManager, Settings
from tests.numpy_cases import KERNELS
from tests.torch_cases import Forced, every_kernel_always

CPU = torch.device("cpu")
SIZE = 1 << 20  # of an array: beside it _OBJECTS are few
ROOM = 3 * (SIZE + _OBJECTS)


class Value:
    """Something that makes an array when it is asked for one."""

    def __init__(self, charge: Account) -> None:
        self.charge, self.made = charge, [charge(np.empty(SIZE, np.uint8))]

    def make(self) -> None:
        self.made.append(self.charge(np.empty(SIZE, np.uint8)))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(ROOM)


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """The shelf of weights, empty and with a room of 1 MiB."""
    weights.forget()
    monkeypatch.setattr(weights.SHELF, "_room", 1 << 20)
    yield weights.SHELF
    weights.forget()


# The shelf


def test_the_least_recently_used_goes_first(shelf: Shelf) -> None:
    builds: list[int] = []

    def get(key: int) -> None:
        def build(charge: Account) -> Value:
            builds.append(key)
            return Value(charge)

        shelf.get(key, build)

    for key in (1, 2, 3, 1, 4, 1, 3, 2):  # 4 drives out 2, the least recently used
        get(key)
    assert builds == [1, 2, 3, 4, 2]


def test_what_a_value_makes_later_counts_and_is_a_use(shelf: Shelf) -> None:
    first, second, third = (shelf.get(key, Value) for key in (1, 2, 3))
    first.make()  # as large as four: 2 goes, which was used before 1 and 3
    assert shelf.size == 3 * SIZE + 2 * _OBJECTS
    assert shelf.get(3, Value) is third
    assert shelf.get(1, Value) is first
    second.make()  # nobody's any more
    assert shelf.size == 3 * SIZE + 2 * _OBJECTS
    assert shelf.get(2, Value) is not second


def test_the_newest_stays_even_if_it_alone_is_too_large(shelf: Shelf) -> None:
    large = shelf.get(1, Value)
    for _ in range(5):
        large.make()
    assert shelf.get(1, Value) is large
    shelf.get(2, Value)
    assert len(shelf) == 1
    assert shelf.size == SIZE + _OBJECTS


def test_values_of_no_size_are_bounded_too() -> None:
    shelf = Shelf(100 * _OBJECTS)
    for key in range(300):
        assert shelf.get(key, lambda charge: None) is None
    assert len(shelf) == 100


def test_what_is_dropped_is_freed_at_once(shelf: Shelf) -> None:
    gone = weakref.ref(shelf.get(0, Value))
    gc.disable()
    try:
        for key in (1, 2, 3):
            shelf.get(key, Value)
        assert gone() is None
    finally:
        gc.enable()


def at_once(work: Callable[[], Any], threads: int = 8) -> list[Any]:
    """Return what `work` returns in each of some threads that begin together."""
    start, found = threading.Barrier(threads), []

    def run() -> None:
        start.wait()
        found.append(work())

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return found


def test_threads_that_build_one_value_get_the_same(shelf: Shelf) -> None:
    def build(charge: Account) -> Value:
        time.sleep(0.01)
        return Value(charge)

    found = at_once(lambda: shelf.get(0, build))
    assert len(found) == 8
    assert {id(value) for value in found} == {id(shelf.get(0, build))}
    assert shelf.size == SIZE + _OBJECTS


def test_threads_leave_the_count_right(shelf: Shelf) -> None:
    def work() -> bool:
        for i in range(200):
            shelf.get(i % 5, Value).make()
        return True

    assert at_once(work) == [True] * 8
    kept = list(shelf._kept.values())
    newest = max((account for _, account in kept), key=lambda account: account.used)
    assert shelf.size == sum(account.size for _, account in kept) <= max(ROOM, newest.size)
    for value, account in kept:
        assert account.is_held
        assert account.size == _OBJECTS + SIZE * len(value.made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")
def test_a_child_makes_weights_though_another_thread_was_at_the_shelf() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with weights.SHELF._lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            found = numpy_weights_of(fnn.Caputo(0.7123), 50, 1.0, np.dtype("float64")).column
            status = 0 if np.isfinite(found.column).all() else 2
        finally:
            os._exit(status)
    done.set()
    holder.join()
    deadline = time.monotonic() + 60
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child waits for a lock that nobody holds")
    assert os.waitstatus_to_exitcode(status) == 0


# The weights


def held_by(value: Any, seen: dict[int, Any]) -> int:
    """Return the bytes of all arrays and tensors that hang on a value, each memory once."""
    if id(value) in seen or isinstance(value, Account):
        return 0
    seen[id(value)] = value
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        return 0 if seen.setdefault(-storage.data_ptr(), storage) is not storage else storage.nbytes()
    if isinstance(value, np.ndarray):
        address = value.__array_interface__["data"][0]
        return 0 if seen.setdefault(-address, value) is not value else value.nbytes
    if isinstance(value, dict):
        return sum(held_by(each, seen) for each in value.values())
    if isinstance(value, tuple | list):
        return sum(held_by(each, seen) for each in value)
    slots = {name: getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)}
    return held_by({**getattr(value, "__dict__", {}), **slots}, seen) if "hpfracc_nn" in type(value).__module__ else 0


def assert_counted(shelf: Shelf) -> None:
    """Every byte is counted: operands that are views of a form count with it, up to three times."""
    ((value, account),) = shelf._kept.values()
    own = {name: each for name, each in vars(value).items() if name not in ("nodes", "source")}  # which others share
    held = held_by(own, {})
    assert held <= account.size <= 3 * held + _OBJECTS
    assert shelf.size == account.size


@every_kernel_always
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.slow
def test_all_that_kernels_make_of_weights_is_counted(forced: Forced, channels: int) -> None:
    definition = fnn.RiemannLiouville(0.5 if channels == 1 else [0.3, 0.4, 0.6])
    x = forced.random(2, channels, 300).requires_grad_()
    weights.forget()
    forced(x, definition).sum().backward()
    forced(x.detach().transpose(1, 2).contiguous(), definition, dim=1)
    assert_counted(weights.SHELF)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_all_that_kernels_for_numpy_make_is_counted(kernel: Any) -> None:
    manager = BackendManager(Settings(force_backend=kernel.backend, force_algorithm=kernel.algorithm))
    weights.forget()
    fnn.derivative(np.ones((2, 300)), fnn.RiemannLiouville(0.5), manager=manager)
    assert_counted(weights.SHELF)


def test_weights_of_long_series_outgrow_no_room(small_room: Shelf) -> None:
    for alpha in np.linspace(0.1, 0.9, 40):
        fnn.caputo(torch.ones(20_000), float(alpha))  # boundary columns of 80 kB, or more
        fnn.caputo(np.ones(5_000), float(alpha))
        assert small_room.size <= 1 << 20
    assert 1 < len(small_room) < 40


@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
def test_weights_that_are_dropped_while_they_are_used_change_nothing(learn: bool) -> None:
    layer = fnn.FractionalLayer(0.3, learn_alpha=learn, dtype=torch.float64)
    x = torch.randn(3, 700, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    expected = layer(x)
    (wanted,) = torch.autograd.grad(expected.square().sum(), x)
    y = layer(x)
    weights.forget()  # between the forward and the backward pass
    (found,) = torch.autograd.grad(y.square().sum(), x)
    assert torch.equal(found, wanted)
    assert torch.equal(layer(x), expected)  # made anew


def test_an_operator_in_use_and_a_flood_of_others_stay_within_the_room(small_room: Shelf) -> None:
    x = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
    layer = fnn.FractionalLayer(0.3, manager=BackendManager(Settings(force_algorithm="fft")))
    expected = layer(x)
    first = weakref.ref(weights_of(fnn.Caputo(0.3), 3000, 1.0, torch.float32, CPU))
    for i in range(60):
        fnn.derivative(x, fnn.Caputo(0.31 + i / 100))
        assert torch.equal(layer(x), expected)
        assert small_room.size <= 1 << 20
    assert first() is None  # it was dropped, and made anew


def test_the_shared_stencil_keeps_no_column() -> None:
    weights.forget()
    for definition in (fnn.Caputo(0.4), fnn.RiemannLiouville(0.4)):
        fnn.derivative(torch.ones(2, 100), definition)
        fnn.derivative(np.ones((2, 100)), definition)
        stencil = weights.fixed_stencil(definition, 100, 1.0)
        assert not {"left", "start", "analytic"} & set(vars(stencil))
