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
from hpfracc_nn.fractional.cache import _OBJECTS, ByteCache
from hpfracc_nn.fractional.numpy.weights import weights_of as numpy_weights_of
from hpfracc_nn.fractional.torch.weights import weights_of
from hpfracc_nn.selection import BackendManager, Settings
from tests.numpy_cases import KERNELS
from tests.torch_cases import DT, Forced, every_kernel_always

CPU = torch.device("cpu")
SIZE = 1 << 20  # of an array: beside it _OBJECTS are few
LIMIT = 3 * (SIZE + _OBJECTS)


class Value:
    """Something that makes an array when it is asked for one."""

    def __init__(self) -> None:
        self.made = [np.empty(SIZE, np.uint8)]

    def make(self) -> None:
        self.made.append(np.empty(SIZE, np.uint8))

    @property
    def nbytes(self) -> int:
        return SIZE * len(self.made)


def held(cache: ByteCache, key: Any) -> Any:
    """Return a key's value, None if there is none."""

    def missing() -> Any:
        raise LookupError

    try:
        return cache.get(key, missing)
    except LookupError:
        return None


@pytest.fixture
def cache() -> ByteCache:
    return ByteCache(LIMIT)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[ByteCache]:
    """The cache of weights, empty and with a limit of 1 MiB."""
    weights.forget()
    monkeypatch.setattr(weights.CACHE, "limit", 1 << 20)
    yield weights.CACHE
    weights.forget()


# The cache


def test_the_least_recently_used_goes_first(cache: ByteCache) -> None:
    builds: list[int] = []

    def get(key: int) -> None:
        def build() -> Value:
            builds.append(key)
            return Value()

        cache.get(key, build)

    for key in (1, 2, 3, 1, 4, 1, 3, 2):  # 4 drives out 2, the least recently used
        get(key)
    assert builds == [1, 2, 3, 4, 2]


def test_what_a_value_makes_later_counts_and_is_a_use(cache: ByteCache) -> None:
    first, second, third = (cache.get(key, Value) for key in (1, 2, 3))
    first.make()
    cache.get(4, lambda: None)  # as large as four now: 2 goes, which was used before 1 and 3
    assert cache.size == 3 * SIZE + 3 * _OBJECTS
    assert cache.get(3, Value) is third
    assert cache.get(1, Value) is first
    second.make()  # in no cache any more
    cache.get(4, lambda: None)
    assert cache.size == 3 * SIZE + 3 * _OBJECTS
    assert cache.get(2, Value) is not second


def test_values_that_grow_are_measured_though_nobody_gets_them_again() -> None:
    """As weights whose operands for the backward pass are made by a prepared call."""
    cache = ByteCache(4 * SIZE)
    silent = [cache.get(("silent", key), Value) for key in range(2)]
    for key in range(60):
        cache.get(key, lambda: None)
    for each in silent:
        each.make()
    for key in range(60, 70):
        cache.get(key, lambda: None)
    kept = [value for key in range(2) if (value := held(cache, ("silent", key))) is not None]
    assert len(kept) == 1
    assert cache.size == 2 * SIZE + _OBJECTS * len(cache) <= cache.limit


def test_the_newest_stays_even_if_it_alone_is_too_large(cache: ByteCache) -> None:
    large = cache.get(1, Value)
    for _ in range(5):
        large.make()
    assert cache.get(1, Value) is large
    newest = cache.get(2, Value)
    assert len(cache) == 1
    assert cache.get(2, Value) is newest
    assert cache.size == SIZE + _OBJECTS


def test_values_of_no_size_are_bounded_too() -> None:
    cache = ByteCache(100 * _OBJECTS)
    for key in range(300):
        assert cache.get(key, lambda: None) is None
    assert len(cache) == 100


def test_what_is_dropped_is_freed_at_once(cache: ByteCache) -> None:
    gone = weakref.ref(cache.get(0, Value))
    gc.disable()
    try:
        for key in (1, 2, 3):
            cache.get(key, Value)
        assert gone() is None
    finally:
        gc.enable()


def test_a_finalizer_may_use_the_cache(cache: ByteCache) -> None:
    class Last(Value):
        def __del__(self) -> None:
            found.append(cache.get("after", Value))

    found: list[Value] = []
    for key in range(4):
        cache.get(key, Last)  # the fourth drops the first
    cache.clear()
    assert len(found) == 4
    assert held(cache, "after") is found[-1]


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


def test_threads_that_build_one_value_get_the_same(cache: ByteCache) -> None:
    def build() -> Value:
        time.sleep(0.01)
        return Value()

    found = at_once(lambda: cache.get(0, build))
    assert len(found) == 8
    assert {id(value) for value in found} == {id(cache.get(0, build))}
    assert cache.size == SIZE + _OBJECTS


def test_threads_leave_the_size_right(cache: ByteCache) -> None:
    def work() -> bool:
        for i in range(200):
            cache.get(i % 5, Value).make()
        return True

    assert at_once(work) == [True] * 8
    cache.get("newest", lambda: None)
    kept = [value for key in range(5) if (value := held(cache, key)) is not None]
    assert cache.size == sum(value.nbytes for value in kept) + _OBJECTS * len(cache) <= LIMIT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")
def test_a_child_makes_weights_though_another_thread_was_at_the_cache() -> None:
    held, done = threading.Event(), threading.Event()

    class Slow:
        @property
        def nbytes(self) -> int:  # measured while the cache is locked
            held.set()
            done.wait()
            return 0

    def hold() -> None:
        weights.CACHE.get("slow", Slow)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            found = numpy_weights_of(fnn.Caputo(0.7123), 50, 1.0, np.dtype("float64")).column()
            status = 0 if np.isfinite(found.weights).all() else 2
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
    if id(value) in seen:
        return 0
    seen[id(value)] = value
    if isinstance(value, Tensor):
        return held_at(value.untyped_storage().data_ptr(), value.untyped_storage(), seen)
    if isinstance(value, np.ndarray):
        return held_at(value.__array_interface__["data"][0], value, seen)
    if isinstance(value, dict):
        return sum(held_by(each, seen) for each in value.values())
    if isinstance(value, tuple | list):
        return sum(held_by(each, seen) for each in value)
    if "hpfracc_nn" not in type(value).__module__:
        return 0
    slots = {name: getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)}
    return held_by({**getattr(value, "__dict__", {}), **slots}, seen)


def held_at(address: int, memory: Any, seen: dict[int, Any]) -> int:
    if -address in seen:
        return 0
    seen[-address] = memory  # which keeps the address from being used again
    return int(memory.nbytes() if callable(memory.nbytes) else memory.nbytes)


def assert_counted(value: Any) -> None:
    """Every byte is counted: operands that are views of others count with them, of three channels 3.2 times."""
    own = {name: each for name, each in vars(value).items() if name not in ("nodes", "source")}  # which others share
    held = held_by(own, {})
    weights.CACHE.get("another", lambda: None)  # the others are measured
    assert held <= value.nbytes <= 4 * held + _OBJECTS
    assert weights.CACHE.size == value.nbytes + 2 * _OBJECTS


@every_kernel_always
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.slow
def test_all_that_kernels_make_of_weights_is_counted(forced: Forced, channels: int) -> None:
    definition = fnn.RiemannLiouville(0.5 if channels == 1 else [0.3, 0.4, 0.6])
    x = forced.random(2, channels, 300).requires_grad_()
    weights.forget()
    forced(x, definition).sum().backward()
    forced(x.detach().transpose(1, 2).contiguous(), definition, dim=1)
    assert_counted(weights_of(definition, 300, DT, x.dtype, x.device))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_all_that_kernels_for_numpy_make_is_counted(kernel: Any) -> None:
    manager = BackendManager(Settings(force_backend=kernel.backend, force_algorithm=kernel.algorithm))
    weights.forget()
    fnn.derivative(np.ones((2, 300)), fnn.RiemannLiouville(0.5), manager=manager)
    assert_counted(numpy_weights_of(fnn.RiemannLiouville(0.5), 300, 1.0, np.dtype("float64")))


def test_weights_of_long_series_stay_within_the_limit(small: ByteCache) -> None:
    for alpha in np.linspace(0.1, 0.9, 40):
        fnn.caputo(torch.ones(20_000), float(alpha))  # boundary columns of 80 kB, or more
        fnn.caputo(np.ones(5_000), float(alpha))
        assert small.size <= 1 << 20
    assert 1 < len(small) < 40


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_matrices_that_are_made_later_push_out_older_weights(small: ByteCache, framework: str) -> None:
    manager = BackendManager(Settings(force_algorithm="dense"))
    x = np.ones(150) if framework == "numpy" else torch.ones(150, dtype=torch.float64)
    made: list[weakref.ref[Any]] = []
    for alpha in np.linspace(0.1, 0.9, 40):
        fnn.derivative(x, fnn.Caputo(float(alpha)), manager=manager)  # a column of 1 kB, and then a matrix of 180 kB
        definition = fnn.Caputo(float(alpha)), 150, 1.0
        if framework == "numpy":
            made.append(weakref.ref(numpy_weights_of(*definition, np.dtype("float64"))))
        else:
            made.append(weakref.ref(weights_of(*definition, torch.float64, CPU)))
        alive = [each.nbytes for ref in made if (each := ref()) is not None]
        assert alive[-1] > 8 * 150**2
        assert sum(alive[:-1]) <= small.limit  # the newest is counted when another one comes in
    assert len(alive) > 1


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


def test_an_operator_in_use_and_a_flood_of_others_stay_within_the_limit(small: ByteCache) -> None:
    x = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
    layer = fnn.FractionalLayer(0.3, manager=BackendManager(Settings(force_algorithm="fft")))
    expected = layer(x)
    first = weakref.ref(weights_of(fnn.Caputo(0.3), 3000, 1.0, torch.float32, CPU))
    for i in range(60):
        fnn.derivative(x, fnn.Caputo(0.31 + i / 100))
        assert torch.equal(layer(x), expected)
        assert small.size <= 1 << 20
    assert first() is None  # it was dropped, and made anew


def test_the_shared_stencil_keeps_no_column() -> None:
    weights.forget()
    for definition in (fnn.Caputo(0.4), fnn.RiemannLiouville(0.4)):
        fnn.derivative(torch.ones(2, 100), definition)
        fnn.derivative(np.ones((2, 100)), definition)
        stencil = weights.fixed_stencil(definition, 100, 1.0)
        assert not {"left", "start", "analytic"} & set(vars(stencil))
