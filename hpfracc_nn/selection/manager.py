"""The BackendManager, which turns workloads into plans and keeps what they counted; and the process-wide one."""

import itertools
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

from hpfracc_nn import errors
from hpfracc_nn.forks import in_children
from hpfracc_nn.selection.candidates import accepted
from hpfracc_nn.selection.fallback import RUN, Work, carried_out
from hpfracc_nn.selection.learning.fingerprint import cores
from hpfracc_nn.selection.learning.learner import Learner, understood_text
from hpfracc_nn.selection.learning.model import Prediction
from hpfracc_nn.selection.learning.wisdom import Trust
from hpfracc_nn.selection.learning.wisdom_file import LOCK_SECONDS
from hpfracc_nn.selection.lifecycle import enrol
from hpfracc_nn.selection.machine import Machine, this_machine
from hpfracc_nn.selection.observe import advice, telemetry
from hpfracc_nn.selection.observe.explain import explain
from hpfracc_nn.selection.plan import Block, Counts, Plan
from hpfracc_nn.selection.planner import Planner
from hpfracc_nn.selection.recorder import Counters, Event, Look, Recorder, ReportRow, row_of, shared
from hpfracc_nn.selection.registry import has_probe, operation, probe, rehearsal
from hpfracc_nn.selection.settings import Settings, SettingsChanges, from_environment
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Direction, Measurement, Workload


class BackendManager:
    """Chooses the kernel for each workload: the forced one, else the best by the objective.

    Planning takes a lock; a site that has its plan takes none. A copy is the manager itself.

    Args:
        settings: None reads the environment.
        machine: The machine whose rates estimates are made with; None is the one that this process shares.
        clock: Seconds that never go back, by which kernels that failed are left alone for a while.

    Attributes:
        planner: Turns workloads into plans; it has the lock, the learner, the quarantine and the candidates.
        recorder: Keeps choices, times and failures; it has the event log and the counts.

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
        settings = from_environment() if settings is None else settings
        self.planner = Planner(settings, machine or this_machine(), clock)
        self.recorder = Recorder(self.planner, telemetry.join)
        self._shared_sites: dict[tuple[str, str, str], Site] = {}
        self._site_numbers = itertools.count()
        enrol(self.recorder)

    @property
    def settings(self) -> Settings:
        """The settings of the user; `configure` changes them."""
        return self.planner.settings

    @property
    def lock(self) -> threading.RLock:
        """The lock that is held while something is decided or changed."""
        return self.planner.lock

    @property
    def learner(self) -> Learner:
        """What learns the times of kernels, from live calls and from the wisdom of earlier processes."""
        return self.planner.learner

    @property
    def epoch(self) -> int:
        """A number that changes whenever settings or kernels do; every site then drops its plans."""
        return self.planner.candidates.epoch

    def configure(self, **changes: Unpack[SettingsChanges]) -> None:
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
        with self.lock:
            self.planner.adopt(self.settings.changed(changes))
        self.learner.outbox.deliver(0.0)

    def reload_env(self) -> None:
        """Read the environment again; it replaces whatever `configure` had set."""
        with self.lock:
            self.planner.adopt(from_environment())
        self.learner.outbox.deliver(0.0)

    def plan(self, workload: Workload) -> Plan:
        """Return the plan for `workload`, the same one until something is configured or another kernel is better.

        Where the caller passes the plan's times to `record`, the manager learns from them.

        Raises:
            LookupError: No kernel accepts the workload, or none of those that are forced.
        """
        return self.planner.plan(workload)

    def plan_with(self, name: str, reason: str, workload: Workload) -> Plan:
        """Return a new learning plan that runs the kernel `name`, chosen for `reason`."""
        with self.lock:
            return self.planner.plan_with(name, reason, workload)

    def predict(self, workload: Workload) -> dict[str, Prediction]:
        """Return what is expected of each kernel that accepts `workload`, by its name, fastest first.

        Seconds are those of the forward pass and of the backward pass times how often it has followed; until that was
        seen, it counts at each call that wants a gradient. A kernel that was not measured has no samples and the wide
        bounds of an estimate, narrower where the same kernel was measured on other sizes. Compilation is left out.
        """
        with self.lock:
            found = self.planner.expected(workload, self.planner.candidates.fitting(workload))
        return dict(sorted(found.items(), key=lambda item: item[1].seconds))

    def explain(self, workload: Workload) -> str:
        """Return a table of all kernels for a workload: times, compilation, memory, and why each is chosen or not."""
        return explain(self.planner, workload, self.history())

    def place(
        self,
        workload: Workload,
        devices: Sequence[str],
        *,
        busy: Mapping[str, float] | None = None,
        bandwidths: Mapping[str, float] | None = None,
    ) -> list[advice.Share]:
        """Return how to spread the rows of `workload` over devices, so that all are done as early as possible.

        Nothing is moved: that is for whoever asks. A device that would be too late gets nothing, and none gets more
        than its memory takes. It rests on what is predicted and measured for each device.

        Args:
            workload: All of it; its device is where the data are.
            devices: The framework's names for them. Whether they are there is not looked at.
            busy: Seconds of work that each has to do before; 0 where it is not named.
            bandwidths: Bytes per second between the data and each other device. None: every part is made where it is
                computed, and nothing has to be moved.

        Raises:
            LookupError: No device accepts any of it.
            ValueError: There are no devices or no rows, one is named twice or has no bandwidth, `busy` or `bandwidths`
                name another one or hold what is no time or speed, or not all rows have room.

        Examples:
            >>> manager = BackendManager(Settings(calibration="shipped"))
            >>> pairwise = register(Kernel("total", "mine", "mine", "pairwise", run=np.sum))
            >>> work = Workload("total", "mine", device="gpu:0", rows=1000, n=4096)
            >>> {share.device: share.rows for share in manager.place(work, ["gpu:0", "gpu:1"])}
            {'gpu:0': 500, 'gpu:1': 500}
            >>> {
            ...     share.device: share.rows
            ...     for share in manager.place(work, ["gpu:0", "gpu:1"], busy={"gpu:0": 2.0})
            ... }
            {'gpu:1': 1000}
            >>> unregister(pairwise)
        """
        return advice.place(self.planner, workload, devices, busy or {}, bandwidths)

    def recommend(self) -> list[str]:
        """Return what would make the calls so far faster, with its figures, the most seconds first.

        It rests on the calls of the sites that are alive and on what is predicted of other workloads: more rows a call,
        one call instead of several, another axis of time, more threads, a package that is not installed, data that
        stay on their device. Nothing is said before a call was timed.
        """
        with self.lock:
            sites = [(site.label or site.op, site.plans()) for site in self.sites()]
            timed = [each for each in self.history() if each.error is None]
            return advice.advice(sites, timed, lambda work: advice.foreseen(self.planner, work), cores() or 1)

    def run(self, op: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return what a kernel of an operation of the caller's own returns for these arguments.

        The operation was introduced by `register_operation`, its kernels by `register`. The call is one consultation:
        it is counted, timed now and then and learnt from, and where the kernel fails the next one runs.

        Args:
            op: The operation.
            args: Arguments for `run` of its kernels, and for the function that describes the workload.
            kwargs: Keyword arguments for both.

        Raises:
            LookupError: There is no such operation, or no kernel accepts the workload.
            TypeError: What describes the call returns no workload.
            ValueError: It returns one of another operation.
        """
        found = operation(op)
        workload = found.described(args, kwargs)
        site = self.shared_site(op, workload.framework, "run")
        plan = site.pick(workload, lambda: workload)
        return carried_out(RUN, site, plan, found, args, kwargs)

    def warm_up(self, workloads: Iterable[Workload]) -> dict[str, float]:
        """Compile and load ahead what calls of these workloads may need, and return the seconds by kernel.

        Each kernel that accepts a workload, and has something to compile for it that it may compile unasked, is run
        once on made-up data of that size; one that nothing else can stand in for, also where it would not start by
        itself. Do it before a CUDA graph is captured, before a server answers, or before the first step of a training.

        Args:
            workloads: As `hpfracc_nn.workload` makes them.

        Raises:
            LookupError: No kernel accepts one of them, or nobody has said how the operation is rehearsed.

        Examples:
            >>> seconds = BackendManager().warm_up(
            ...     [workload((8, 256), framework="torch", needs_gradient=True)]
            ... )
        """
        took: dict[str, float] = {}
        for workload in workloads:
            run = rehearsal(workload.op, workload.framework)
            site = self.shared_site(workload.op, workload.framework, "warm up")
            chosen = self.plan(workload).kernel.name
            for each in accepted(self.planner.candidates.now(workload)):
                missing, name = each.kernel.ask("compiles", workload), each.kernel.name
                plan = self.planner.to_warm_up(name, workload)
                if missing is None and not plan.devices:  # where there are several, what one has another may lack
                    continue
                if missing is not None and missing.seconds == math.inf and name != chosen:
                    continue
                started = time.perf_counter()
                carried_out(Work(lambda plan, run=run: run(plan), is_timed=False), site, plan)
                took[name] = took.get(name, 0.0) + time.perf_counter() - started
        self.reconsider()
        return took

    def site(self, op: str, framework: str, label: str = "") -> Site:
        """Return a site for one caller to keep; it is reported for as long as it lives."""
        made = Site(self, self.recorder, op, framework, label)
        with self.lock:
            self.recorder.sites[next(self._site_numbers)] = made
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

    def sites(self) -> list[Site]:
        """Return the sites that are alive, oldest first."""
        with self.lock:
            return list(self.recorder.sites.values())

    def reconsider(self) -> None:
        """Let the learning plans of every site be decided again at their next call."""
        self.recorder.reconsider()

    def record(
        self,
        plan: Plan,
        seconds: float,
        direction: Direction = "forward",
        *,
        keep: bool = True,
        transfer_seconds: float = 0.0,
        peak_bytes: float | None = None,
    ) -> None:
        """Remember that `plan` took `seconds`, and learn from it.

        A plan's first sample in each direction is dropped: it paid for cold caches. Where that call compiled, it stands
        in the history, with the seconds of compilation.

        Args:
            plan: The plan that ran.
            seconds: The time that the call took.
            direction: Direction of the pass.
            keep: False: the time says nothing of the plan, because the processor was taken away meanwhile. After three
                such times in a row they are kept nevertheless: it is the kernel that waits.
            transfer_seconds: The part of the time that moved data between devices.
            peak_bytes: The most that the call held beyond its input, None where nobody measured it.

        Raises:
            ValueError: A time is negative or not finite, the part more than the whole, or there is no such direction.
        """
        self.recorder.record(
            plan, seconds, direction, keep=keep, transfer_seconds=transfer_seconds, peak_bytes=peak_bytes
        )

    def harvest(self) -> None:
        """Record the calls that devices have finished since the last time; nothing is waited for."""
        self.recorder.harvest()

    def history(self, op: str | None = None) -> list[Measurement]:
        """Return the last measurements, oldest first: of an operation or a profiled block, or all."""
        return [each for each in list(self.recorder.history) if op is None or each.workload.op == op]

    @contextmanager
    def profile(self, name: str) -> Iterator[Block]:
        """Time a block into the history, also one that raises: `history(name)` returns what was measured.

        Args:
            name: Name of the block, which stands in place of an operation's.

        Yields:
            A Block, which times the parts that compile or move data.

        Examples:
            >>> manager = BackendManager()
            >>> with manager.profile("epoch") as block:
            ...     with block.transferring():
            ...         batch = np.ones((4, 64)).copy()  # or `batch.to("cuda")`
            ...     y = derivative(batch, Caputo(0.5), manager=manager)
            >>> (measured,) = manager.history("epoch")
            >>> measured.kernel, measured.succeeded
            ('block', True)
        """
        block = Block()
        succeeded = False
        try:
            yield block
            succeeded = True
        finally:
            self.recorder.history.append(block.measured(Workload(name, "python"), succeeded))

    def report(self, sites: Iterable[Site] | None = None) -> list[ReportRow]:
        """Return one row per site and plan, of all its sites unless some are given."""
        found = [
            row_of(site.label, plan, plan.usage.counts())
            for site in (self.sites() if sites is None else sites)
            for plan in sorted(site.plans(), key=lambda plan: plan.usage.counts().calls, reverse=True)
        ]
        return shared(found)

    def counters(self) -> Counters:
        """Return how often sites, also those that are gone, were consulted."""
        return self.recorder.counts.counters()

    def totals(self) -> dict[tuple[str, str], Counts]:
        """Return how often each kernel was consulted, tried, took over and failed so far, by operation and name."""
        return self.recorder.counts.totals()

    def events(self) -> list[Event]:
        """Return the last 4096 events, oldest first: choices, changes of speed, failures.

        A choice stands here if it was the first at its workload, took another kernel than before, or took long.
        """
        return self.recorder.log.events()

    def looks(self) -> list[Look]:
        """Return how often each kernel had been consulted, at up to 513 points in time, the last one now."""
        return self.recorder.log.looks()

    def failures(self) -> dict[str, dict[str, int]]:
        """Return how often each kernel failed, by its name and the class of the error."""
        with self.lock:
            found = defaultdict[str, Counter[str]](Counter)
            for (_, kernel, error), count in self.recorder.counts.failures.items():
                found[kernel][error] += count
            return {kernel: dict(by_error) for kernel, by_error in found.items()}

    def quarantined(self) -> Counter[tuple[str, str]]:
        """Return at how many workloads, sizes or places each kernel is left alone now, by operation and kernel."""
        return self.recorder.quarantined()

    def exploration(self) -> tuple[float, float]:
        """Return the seconds that trials took longer than the best kernel would have, and those of all calls."""
        budget = self.learner.policy.budget
        return budget.explored, budget.total

    def overhead(self) -> float:
        """Return the seconds that deciding and learning took so far; the look-up at each call is not in it."""
        return self.learner.cost

    def forget(self, op: str | None = None) -> None:
        """Drop what was measured of an operation, or of all, and ask again; what is on disk stays."""
        with self.lock:
            self.learner.forget(op)
            history = self.recorder.history
            kept = [each for each in history if op is not None and each.workload.op != op]
            history.clear()
            history.extend(kept)
            self.planner.kernels_changed()

    def save(self, seconds: float = LOCK_SECONDS) -> bool:
        """Merge what was learnt into the wisdom file; return True where there was something, and all of it is written.

        The manager does so by itself, once a minute while something is learnt, when the settings put an end to learning
        or name another file, and when the process ends. The lock is not held while the file is written.

        Args:
            seconds: How long to wait for another process that writes.
        """
        return self.planner.save(seconds)

    def export_wisdom(self, *, timed_here: bool = False) -> str:
        """Return what is known as text: JSON, as in the wisdom file.

        Args:
            timed_here: Leave out what came from a file or from another process.
        """
        with self.lock:
            return self.learner.text(timed_here=timed_here)

    def import_wisdom(self, text: str) -> Trust:
        """Take over what `export_wisdom` returned elsewhere, and let every site reconsider its choice.

        What this process has timed itself stays. Nothing of it is written to the wisdom file: who timed it does that.

        Returns:
            "own": of a machine like this one, as good as if it was timed here. "prior": of another one, and so times to
            start from.

        Raises:
            ValueError: `text` is no such text, damaged, or of another version of the format.
        """
        wisdom, trust = understood_text(text)
        with self.lock:
            self.learner.take_over(wisdom, trust)
            self.reconsider()
        return trust

    def share_trials(self, rank: int = 0, count: int = 1) -> None:
        """Try only every `count`-th kernel from now on, from number `rank` on; other processes try the others.

        For processes that run alike and tell each other by `import_wisdom`, such as those of one training run. A kernel
        of which nothing was heard after two such rounds is tried here after all.

        Args:
            rank: Number of this process.
            count: Number of processes; 1 tries all.

        Raises:
            ValueError: `rank` is not in [0, count), or one of them is no integer.
        """
        if type(rank) is not int or type(count) is not int:
            raise ValueError(f"share_trials(rank={rank!r}, count={count!r}): needs two integers.")
        if not 0 <= rank < count:
            raise ValueError(f"share_trials(rank={rank}, count={count}): needs 0 <= rank < count.")
        with self.lock:
            self.learner.policy.share = rank, count

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


@in_children
def _after_fork() -> None:
    global _making
    _making = threading.Lock()


def default_manager() -> BackendManager:
    """Return the process-wide manager, made from the environment when first asked for.

    Raises:
        ValueError: A variable of the environment holds what is not known; see `from_environment`.

    Examples:
        >>> default_manager() is default_manager()
        True
    """
    global _process_wide
    if _process_wide is None:
        with _making:
            if _process_wide is None:
                _process_wide = BackendManager()
    return _process_wide


def given_manager(owner: str, manager: Any) -> BackendManager:
    """Return the manager that `owner` was given, the process-wide one for None.

    Raises:
        TypeError: `manager` is no BackendManager.

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


def configure(**changes: Unpack[SettingsChanges]) -> None:
    """Change the settings of the process-wide manager; see `BackendManager.configure`.

    Args:
        changes: By name, as there; None restores the default of one.

    Raises:
        TypeError: As there; nothing is changed then.
        ValueError: As there; nothing is changed then.

    Examples:
        >>> configure(force_algorithm="fft")
        >>> default_manager().settings.forced
        "force_algorithm='fft'"
        >>> configure(force_algorithm=None)
    """
    default_manager().configure(**changes)


def report(sites: Iterable[Site] | None = None) -> list[ReportRow]:
    """Return one row per site and plan; of every site of the process-wide manager by default.

    Args:
        sites: The sites to report, in their order; None is all.

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
        shape: Shape of the input; the axes before `dim` are rows, those after it are width.
        framework: Framework of the arrays.
        dim: The time axis.
        dtype: Dtype of the samples.
        device: Device on which they lie.
        channels: Distinct weight columns.
        exponentials: How many exponentials stand for the weights.
        needs_gradient: A gradient in the input is wanted.
        learns_weights: A gradient in the weights is wanted.
        threads: None asks the framework, and is 1 where that has no probe.
        manager: None is the process-wide one.

    Raises:
        LookupError: No kernel accepts the workload.
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
