"""The BackendManager: turns workloads into plans, and remembers how they fared."""

import itertools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from hpfracc_nn import errors
from hpfracc_nn.selection.answers import Answers
from hpfracc_nn.selection.device_times import DeviceTimes
from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.learning.wisdom_file import LOCK_SECONDS
from hpfracc_nn.selection.lifecycle import enrol
from hpfracc_nn.selection.machine import Machine, has_probe, probe
from hpfracc_nn.selection.observe.counts import Counters, ReportRow, Totals
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.planning import Planning
from hpfracc_nn.selection.recording import Records
from hpfracc_nn.selection.registry import watch
from hpfracc_nn.selection.settings import UNCHANGED, Limit, Mode, Objective, Settings, Unchanged, from_environment
from hpfracc_nn.selection.sharing import Sharing
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Measurement, Workload

MOST_MEASUREMENTS = 4096
MOST_RETIRED = 64


class BackendManager(Planning, Records, Sharing, Answers):
    """Chooses the kernel for each workload: the forced one, else the best by the objective.

    Planning takes a lock; a site that has its plan takes none. A copy is the manager itself.

    Args:
        settings: None reads the environment.
        machine: Whose rates to estimate with; None is the one that this process shares.
        clock: Seconds that never go back, by which kernels that failed are left alone for a while.

    Raises:
        ValueError: A variable of the environment holds what is not known; see `from_environment`.

    Examples:
        >>> manager = BackendManager(Settings(mode="prior"))
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> manager.counters()["forward"]
        1
        >>> print(
        ...     manager.explain(
        ...         workload((4, 64), Caputo(0.5), framework="numpy", dtype="float64")
        ...     )
        ... )
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        machine: Machine | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not isinstance(settings, Settings | None):
            raise TypeError(f"BackendManager(settings={settings!r}): needs Settings; pass for example Settings().")
        if not isinstance(machine, Machine | None):
            raise TypeError(f"BackendManager(machine={machine!r}): needs a Machine; leave it out for this one.")
        if not callable(clock):
            raise TypeError(f"BackendManager(clock={clock!r}): needs a function of nothing; pass time.monotonic.")
        super().__init__(machine, clock)
        self.settings = from_environment() if settings is None else settings
        self.lock = threading.RLock()  # a kernel's `refuses` may plan something itself
        self._sites: weakref.WeakValueDictionary[int, Site] = weakref.WeakValueDictionary()
        self._shared_sites: dict[tuple[str, str, str], Site] = {}
        self._site_numbers = itertools.count()
        self.learner = Learner(self.settings, self._machine)
        self._history: deque[Measurement] = deque(maxlen=MOST_MEASUREMENTS)
        self.device_times = DeviceTimes()
        watch(self)
        enrol(self)

    def renew_locks(self) -> None:
        """Make the locks anew, in a child process: a thread that the child does not have may hold them."""
        self.lock = threading.RLock()
        self.learner.after_fork()
        self.journal.after_fork()
        self.device_times.clear()
        self._machine.renew_lock()

    def configure(
        self,
        *,
        force_backend: str | Unchanged | None = UNCHANGED,
        force_algorithm: str | Unchanged | None = UNCHANGED,
        disable: str | Iterable[str] | Unchanged | None = UNCHANGED,
        calibration: Literal["measured", "shipped"] | Unchanged | None = UNCHANGED,
        sample: bool | Unchanged | None = UNCHANGED,
        mode: Mode | Unchanged | None = UNCHANGED,
        explore_fraction: float | Unchanged | None = UNCHANGED,
        switch_margin: float | Unchanged | None = UNCHANGED,
        objective: Objective | Mapping[str, float] | Unchanged | None = UNCHANGED,
        deterministic: bool | Unchanged | None = UNCHANGED,
        memory_limit: Limit | Unchanged | None = UNCHANGED,
        gpu_memory_limit: Limit | Unchanged | None = UNCHANGED,
        offload: bool | Sequence[str] | Unchanged | None = UNCHANGED,
        wisdom: str | os.PathLike[str] | Unchanged | None = UNCHANGED,
    ) -> None:
        """Change the settings that are given; None restores the default of one. See `Settings`.

        Args:
            force_backend: The only backend that may run.
            force_algorithm: The only algorithm that may run.
            disable: All that may not run: backends or "backend/algorithm", a comma list or an
                iterable; it replaces what was disabled before.
            calibration: "measured" (default) or "shipped".
            sample: Whether live calls are timed now and then (default True).
            mode: "off", "prior", "frozen" or "learn" (default).
            explore_fraction: Part of the time that may go into trying other kernels, in [0, 0.5] (default 0.02).
            switch_margin: By which part a kernel must be better to replace the present one, in [0, 1] (default 0.1).
            objective: "latency" (default), "memory", "energy", or weights such as {"latency": 1, "memory": 0.5}.
            deterministic: Whether plans must not change; None follows the framework.
            memory_limit: The most that a call may take of the host's memory: bytes, a fraction in (0, 1] of what
                is free, or text such as "4GiB".
            gpu_memory_limit: The same for the other devices.
            offload: Whether data on the host may be computed on a device and come back (default False), or a list of
                the devices that share the work; each part goes to one that is free.
            wisdom: A directory, "off", or "default".

        Raises:
            ValueError: A name is not known, a number out of range, or energy cannot be read; nothing is changed then.
            TypeError: A value is of another type; nothing is changed then.
        """
        given: dict[str, Any] = {
            "force_backend": force_backend,
            "force_algorithm": force_algorithm,
            "disabled": disable,
            "calibration": calibration,
            "sample": sample,
            "mode": mode,
            "explore_fraction": explore_fraction,
            "switch_margin": switch_margin,
            "objective": objective,
            "deterministic": deterministic,
            "memory_limit": memory_limit,
            "gpu_memory_limit": gpu_memory_limit,
            "offload": offload,
            "wisdom": wisdom,
        }
        changes = {
            name: getattr(Settings, name) if value is None else value  # the default of a field is its class attribute
            for name, value in given.items()
            if not isinstance(value, Unchanged)
        }
        with self.lock:
            self._adopt(replace(self.settings, **changes))
        self.learner.outbox.deliver(0.0)

    def reload_env(self) -> None:
        """Read the environment again; it replaces whatever `configure` had set."""
        with self.lock:
            self._adopt(from_environment())
        self.learner.outbox.deliver(0.0)

    def reconsider(self) -> None:
        """Let every site ask again at its next call."""
        for site in self.sites():
            site.reconsider()

    def site(self, op: str, framework: str, label: str = "") -> Site:
        """Return a site for one caller to keep; it is reported for as long as it lives."""
        if len(self.tally.retired) > MOST_RETIRED:
            self._fold()  # not where a site dies: the garbage collector must not wait for a lock
        number = next(self._site_numbers)
        self.tally.open.add(number)
        made = Site(self, op, framework, label, self.tally, number)
        with self.lock:
            self._sites[number] = made
        return made

    def shared_site(self, op: str, framework: str, label: str) -> Site:
        """Return the one site of that label, kept by the manager: for functions, which keep nothing."""
        key = (op, framework, label)
        found = self._shared_sites.get(key)
        if found is None:
            with self.lock:
                found = self._shared_sites.get(key)
                if found is None:
                    found = self._shared_sites[key] = self.site(op, framework, label)
        return found

    @staticmethod
    def process_site(op: str, framework: str, label: str) -> Site:
        """Return a site of the process-wide manager: what an unpickled site becomes."""
        return default_manager().site(op, framework, label)

    def forget(self, op: str | None = None) -> None:
        """Drop what was measured of an operation, or of all, and ask again; what is on disk stays."""
        with self.lock:
            self.learner.forget(op)
            kept = [each for each in self._history if op is not None and each.workload.op != op]
            self._history.clear()
            self._history.extend(kept)
            self.kernels_changed()

    def save(self, seconds: float = LOCK_SECONDS) -> bool:
        """Merge what was learnt into the wisdom file, and return whether it is there now.

        It happens by itself, once a minute while something is learnt, when the settings put an end to learning or name
        another file, and when the process ends. The lock is not held while the file is written.

        Args:
            seconds: How long to wait for another process that writes.
        """
        with self.lock:
            outbox = self.learner.packed()
        return outbox.deliver(seconds)

    def sites(self) -> list[Site]:
        """Return the sites that are alive, oldest first."""
        with self.lock:
            return list(self._sites.values())

    def counters(self) -> Counters:
        """Return how often sites, also those that are gone, were consulted."""
        with self.lock:
            return self.tally.counters(self._plans_in_use())

    def totals(self) -> Totals:
        """Return how often each kernel was consulted, and took over from another one, so far."""
        with self.lock:
            return self.tally.totals(self._plans_in_use())

    def exploration(self) -> tuple[float, float]:
        """Return the seconds that trials took longer than the best kernel would have, and those of all calls."""
        budget = self.learner.policy.budget
        return budget.explored, budget.total

    def overhead(self) -> float:
        """Return the seconds that deciding and learning took so far; the look-up at each call is not in it."""
        return self.learner.cost

    def retire(self, plans: tuple[Plan, ...]) -> None:
        """Keep the counts of plans that their site lets go."""
        self.tally.retired.append(plans)
        self._fold()

    def _adopt(self, settings: Settings) -> None:
        self.settings = settings
        self.learner.adopt(settings)
        self._quarantine.lift()
        self.kernels_changed()

    def _fold(self) -> None:
        with self.lock:
            self.tally.fold()

    def _plans_in_use(self) -> Iterator[Plan]:
        return (plan for site in self.sites() for plan in site.plans())

    def __copy__(self) -> "BackendManager":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "BackendManager":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self is _process_wide:
            return default_manager, ()
        return BackendManager, (self.settings,)


_process_wide: BackendManager | None = None
_making = threading.Lock()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def default_manager() -> BackendManager:
    """Return the process-wide manager, made from the environment when first asked for.

    Raises:
        ValueError: A variable of the environment holds what is not known; see `from_environment`.

    Examples:
        >>> default_manager() is default_manager()
        True
    """
    global _process_wide
    with _making:
        if _process_wide is None:
            _process_wide = BackendManager()
        return _process_wide


def given_manager(owner: str, manager: Any) -> BackendManager:
    """Return the manager that `owner` was given, the process-wide one for None.

    Raises:
        TypeError: It is no manager.

    Examples:
        >>> given_manager("MyLayer", None) is default_manager()
        True
    """
    if manager is None:
        return default_manager()
    if not isinstance(manager, BackendManager):
        raise TypeError(f"{owner}(manager={manager!r}): needs a BackendManager; leave it out for the process-wide one.")
    return manager


def is_process_wide(manager: BackendManager) -> bool:
    """Return whether `manager` is the one that `default_manager` returns; a compiler can follow it.

    Examples:
        >>> is_process_wide(default_manager()), is_process_wide(BackendManager())
        (True, False)
    """
    return manager is _process_wide


def configure(**settings: Any) -> None:
    """Change the settings of the process-wide manager; see `BackendManager.configure`.

    Args:
        settings: By name, as there; None restores the default of one.

    Raises:
        TypeError: As there; nothing is changed then.
        ValueError: As there; nothing is changed then.

    Examples:
        >>> configure(force_algorithm="fft")
        >>> default_manager().settings.forced
        "force_algorithm='fft'"
        >>> configure(force_algorithm=None)
    """
    default_manager().configure(**settings)


def report(sites: Iterable[Site] | None = None) -> list[ReportRow]:
    """Return one row per site and plan; of every site of the process-wide manager by default.

    Args:
        sites: Those to report, in their order; None is all.

    Examples:
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5))
        >>> rows = report()
        >>> "toeplitz" in {row.op for row in rows}, round(sum(row.share for row in rows), 6)
        (True, 1.0)
    """
    return default_manager().report(sites)


def choose(
    op: str,
    shape: Sequence[int],
    *,
    framework: str,
    dim: int = -1,
    dtype: str = "float32",
    device: str = "cpu",
    channels: int = 1,
    exponentials: int = 0,
    needs_gradient: bool = False,
    learns_weights: bool = False,
    threads: int | None = None,
    manager: BackendManager | None = None,
) -> Plan:
    """Return the plan for data of this shape, without the data.

    Args:
        op: The operation.
        shape: Of the input; the axes before `dim` are rows, those after it are width.
        framework: Whose arrays.
        dim: The time axis.
        dtype: Of the samples.
        device: Where they lie.
        channels: Distinct weight columns.
        exponentials: How many stand for the weights.
        needs_gradient: A gradient in the input is wanted.
        learns_weights: A gradient in the weights is wanted.
        threads: None asks the framework, and is 1 where that has no probe.
        manager: None is the process-wide one.

    Raises:
        LookupError: No kernel accepts it.
        ValueError: `dim` is not an axis of `shape`.

    Examples:
        >>> pairwise = register(Kernel("total", "numpy", "numpy", "pairwise", run=np.sum))
        >>> # `hpfracc_nn.choose` is for its own operations
        >>> choose("total", (32, 8, 1024), framework="numpy").algorithm
        'pairwise'
        >>> unregister(pairwise)
    """
    if not isinstance(framework, str):
        raise TypeError(f"choose(framework={framework!r}): needs a name as text; pass for example 'torch'.")
    sizes = errors.lengths("choose", "shape", shape)
    found = errors.index("choose", "dim", dim)
    if not -len(sizes) <= found < len(sizes):
        raise ValueError(f"choose(dim={dim}): needs an axis of shape {sizes}.")
    axis = found % len(sizes)
    workload = Workload(
        op,
        framework,
        device=device,
        dtype=dtype,
        rows=math.prod(sizes[:axis]),
        n=sizes[axis],
        width=math.prod(sizes[axis + 1 :]),
        channels=channels,
        exponentials=exponentials,
        needs_gradient=needs_gradient,
        learns_weights=learns_weights,
        threads=(probe(framework).threads() if has_probe(framework) else 1) if threads is None else threads,
    )
    return given_manager("choose", manager).plan(workload)
