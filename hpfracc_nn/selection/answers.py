"""What a manager answers when it is asked about itself; nothing is changed by asking."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpfracc_nn.selection.candidates import Verdict, accepted, assess
from hpfracc_nn.selection.learning.fingerprint import cores
from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.learning.model import Prediction
from hpfracc_nn.selection.machine import CostModel, Limit, limit_of, parts
from hpfracc_nn.selection.observe.counts import ReportRow
from hpfracc_nn.selection.observe.explain import rows, table
from hpfracc_nn.selection.observe.placement import Share, paced, refuse, spread
from hpfracc_nn.selection.observe.recommend import Outlook, advice
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Measurement, Workload


class Answers(ABC):
    """The part of a manager that explains."""

    lock: threading.RLock
    settings: Settings
    learner: Learner

    def predict(self, workload: Workload) -> dict[str, Prediction]:
        """Return what is expected of each kernel that accepts `workload`, by its name, fastest first.

        Seconds are of the forward pass and of the backward pass as often as it follows: at each call that wants a
        gradient, until it was seen how often. A kernel that was not measured has no samples and the wide bounds of an
        estimate, narrower where the same kernel was measured on other sizes. Compiling is not in it.
        """
        with self.lock:
            found = self._expected(workload, self._fitted(workload))
        return dict(sorted(found.items(), key=lambda item: item[1].seconds))

    def explain(self, workload: Workload) -> str:
        """Return a table of every kernel: what is expected, compiled, held and measured, and why this one or not."""
        with self.lock:
            fitting = self._fitted(workload)
            verdicts = self._reduced(fitting, workload)
            plan = self._planned(workload) if accepted(verdicts) else None
            expected = self._expected(workload, fitting)  # also of those that are left alone until a moment later
            trial = self.learner.trial(workload)
            roofline = self._roofline(verdicts, workload)
            return table(
                verdicts, workload, self.settings.of(workload.op), self.history(), plan, expected, roofline, trial
            )

    def place(
        self,
        workload: Workload,
        devices: Sequence[str],
        *,
        busy: Mapping[str, float] | None = None,
        bandwidths: Mapping[str, float] | None = None,
    ) -> list[Share]:
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
        busy = busy or {}
        refuse(workload, devices, busy, bandwidths)
        named = {workload.device: math.inf, **(bandwidths or dict.fromkeys(devices, math.inf))}
        paces = [
            paced(workload, device, self.plan, start=busy.get(device, 0.0), bandwidth=named[device])
            for device in devices
        ]
        if not any(pace.most for pace in paces):
            self.plan(replace(workload, device=devices[0]))  # which says why not
        return spread(workload.rows, paces)

    def recommend(self) -> list[str]:
        """Return what would make the calls so far faster, with its figures, the most seconds first.

        It rests on the calls of the sites that are alive and on what is predicted of other workloads: more rows a call,
        one call instead of several, another axis of time, more threads, a package that is not installed, data that
        stay on their device. Nothing is said before a call was timed.
        """
        with self.lock:
            sites = [(site.label or site.op, site.plans()) for site in self.sites()]
            timed = [each for each in self.history() if each.error is None]
            return advice(sites, timed, self._outlook, cores() or 1)

    def report(self, sites: Iterable[Site] | None = None) -> list[ReportRow]:
        """Return one row per site and plan, of all its sites unless some are given."""
        return rows(self.sites() if sites is None else sites)

    def _expected(self, workload: Workload, verdicts: list[Verdict]) -> dict[str, Prediction]:
        if self.learner.uses_knowledge(workload.framework):
            return self.learner.expected(workload, verdicts)
        found = {}
        for each in accepted(verdicts):
            found[each.kernel.name] = Prediction.within(each.seconds, each.uncertainty)
        return found

    def _roofline(self, verdicts: list[Verdict], workload: Workload) -> dict[str, tuple[float, Limit]]:
        """Return operations per byte of each kernel that accepts, and what most of its estimate goes into."""
        able = accepted(verdicts)
        if not able:
            return {}
        rates = self._model(workload.framework).rates(workload)
        costs = {each.kernel.name: each.kernel.ask("cost", workload) for each in able}
        return {name: (cost.intensity, limit_of(cost, rates)) for name, cost in costs.items()}

    def _outlook(self, workload: Workload) -> Outlook | None:
        """Return what to expect of a workload, None where no kernel accepts it."""
        verdicts = self._fitted(workload)
        if not accepted(verdicts):
            return None
        chosen, model = self._planned(workload), self._model(workload.framework)
        launching, computing, moving = parts(chosen.kernel.ask("cost", workload), model.rates(workload))
        missing = {
            each.kernel.name: (each.refusal, assess(each.kernel, workload, model).seconds)
            for each in verdicts
            if each.refusal is not None and "not installed" in each.refusal
        }
        return Outlook(
            chosen.kernel.name,
            chosen.seconds,
            launching=launching,
            computing=computing,
            moving=moving,
            missing=missing,
        )

    @abstractmethod
    def plan(self, workload: Workload) -> Plan: ...

    @abstractmethod
    def sites(self) -> list[Site]: ...

    @abstractmethod
    def history(self, op: str | None = None) -> list[Measurement]: ...

    @abstractmethod
    def _fitted(self, workload: Workload) -> list[Verdict]: ...

    @abstractmethod
    def _reduced(self, verdicts: list[Verdict], workload: Workload) -> list[Verdict]: ...

    @abstractmethod
    def _planned(self, workload: Workload) -> Plan: ...

    @abstractmethod
    def _model(self, framework: str) -> CostModel: ...
