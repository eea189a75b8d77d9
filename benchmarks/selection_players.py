"""Who is compared: the policy of this package, and those of others, written anew from their sources."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable

from selection_replay import BACK_OFF, Player, World

from hpfracc_nn.selection.learning.model import Candidate, Decision
from hpfracc_nn.selection.learning.policy import Policy
from hpfracc_nn.selection.workload import Key

UNCERTAINTY = 2.0  # what the estimate says of itself after a calibration


class Ours(Player):
    """`hpfracc_nn.selection.learning.policy`, asked as a running model asks it: when its period is over."""

    measures = True

    def __init__(self, world: World):
        super().__init__(world)
        self.policy = Policy()
        self._keys = [Key(("replay",), (math.log2(rows), math.log2(n))) for rows, n in self.costs.sizes]
        self._plans: dict[int, str] = {}
        self._left: dict[int, int] = {}
        self._since: dict[int, int] = defaultdict(int)
        self._explored = 0.0  # seconds without noise
        self._blocked: dict[tuple[str, int], float] = {}

    def play(self, key: int) -> str:
        self._since[key] += 1
        if self._left.get(key, 0) > 0:
            self._left[key] -= 1
            if self.world.run(self._plans[key], key) is not None:
                return self._plans[key]
            self._fail(self._plans[key], key)
        return self._ask(key)

    def _ask(self, key: int) -> str:
        while True:
            decision = self.policy.decide(self._keys[key], self._candidates(key), self._since[key])
            self._since[key] = 0
            self._plans[key], self._left[key] = decision.name, decision.period - 1
            compiles = self.world.to_compile(decision.name, key) > 0
            self._account(decision, key)
            seconds = self.world.run(decision.name, key)
            if seconds is None:
                self._fail(decision.name, key)
                self._since[key] = 1
                continue
            change = self.policy.observe(self._keys[key], decision.name, seconds)
            if compiles or change is not None:
                self._left.clear()  # there is more to choose from, or what all sizes believe has changed
            return decision.name

    def _candidates(self, key: int) -> list[Candidate]:
        return [
            Candidate(
                arm,
                self.costs.estimates[arm][key],
                UNCERTAINTY,
                compile_seconds=self.world.to_compile(arm, key),
                code=None if arm in self.costs.each else self.costs.needs.get(arm),
            )
            for arm in self.costs.arms
            if self._blocked.get((arm, key), 0.0) <= self.world.seconds
        ]

    def _fail(self, arm: str, key: int) -> None:
        self._blocked[arm, key] = self.world.seconds + BACK_OFF
        self._left[key] = 0

    def _account(self, decision: Decision, key: int) -> None:
        tried, known = (self.world.now[arm][key] for arm in (decision.name, decision.incumbent))
        self._explored += max(0.0, tried - known)

    def explored(self) -> tuple[float, float]:
        budget, total = self.policy.budget, self.world.seconds - self.world.compiled
        return self._explored / total, budget.fraction + budget.allowance / total


class Calibrated(Ours):
    """The same where an earlier process left its calibration on disk."""

    measures = False


class Informed(Player):
    """Knows every cost and not the future: the fastest arm there is, and what must be compiled when it has paid.

    What it loses is the price of not knowing how long a process will run; nobody who must decide call by call can be
    sure to lose less than this in the worst case.
    """

    def __init__(self, world: World):
        super().__init__(world)
        self._gained: dict[object, float] = defaultdict(float)

    def play(self, key: int) -> str:
        usable = [arm for arm in self.costs.arms if (arm, key) not in self.world.trace.broken]
        seconds = {arm: self.world.now[arm][key] for arm in usable}
        prices = {arm: self.world.to_compile(arm, key) for arm in usable}
        best = min((arm for arm in usable if not prices[arm]), key=seconds.__getitem__)
        for arm in usable:
            if prices[arm] and seconds[arm] < seconds[best]:
                code = (arm, key) if arm in self.costs.each else self.costs.needs[arm]
                self._gained[code] += seconds[best] - seconds[arm]
                if self._gained[code] >= prices[arm]:
                    best = arm
        self.world.run(best, key)
        return best


class Chooser(Player):
    """One who chooses by a rule and may learn from what the call took; where an arm raises, the first that does not."""

    def play(self, key: int) -> str:
        for arm in (self.choose(key), *self.costs.arms):
            seconds = self.world.run(arm, key)
            if seconds is not None:
                self.learn(arm, key, seconds)
                return arm
        raise RuntimeError(f"every arm raises at {self.costs.sizes[key]}")

    def choose(self, key: int) -> str:
        raise NotImplementedError

    def learn(self, arm: str, key: int, seconds: float) -> None:
        pass

    def elements(self, key: int) -> int:
        rows, n = self.costs.sizes[key]
        return rows * n

    def compiled_loop(self) -> str:
        return next(arm for arm in self.costs.arms if arm.startswith("numba"))


class FixedFFT(Chooser):
    """torch.fft for everything."""

    def choose(self, key: int) -> str:
        return "torch/fft"


class EstimateOnly(Chooser):
    """The calibrated estimate, never corrected; of a compilation it counts a tenth, as if ten calls shared it."""

    measures = True

    def choose(self, key: int) -> str:
        return min(
            self.costs.arms, key=lambda arm: self.costs.estimates[arm][key] + self.world.to_compile(arm, key) / 10
        )


class HPFRACC(Chooser):
    """HPFRACC 2 `IntelligentBackendSelector` without a GPU: Numba below 1000 elements, else torch, here by FFT."""

    def choose(self, key: int) -> str:
        return self.compiled_loop() if self.elements(key) < 1000 else "torch/fft"


class HPFRACCFed(HPFRACC):
    """The same with its learning fed: from five records on the backend with the least mean, whatever the size."""

    def __init__(self, world: World):
        super().__init__(world)
        self._sums: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def choose(self, key: int) -> str:
        known = [arm for arm, count in self._counts.items() if count >= 5]
        if known:
            return min(known, key=lambda arm: self._sums[arm] / self._counts[arm])
        return super().choose(key)

    def learn(self, arm: str, key: int, seconds: float) -> None:
        self._sums[arm] += seconds
        self._counts[arm] += 1


class Renacer(Chooser):
    """Renacer's `AdaptiveBackend` for "convolution": GPU above 1000 elements, for which FFT stands, else scalar.

    Times below 100 us are never recorded (its random number is the constant 0.5), and after 10000 calls in all the
    history is not looked at any more.
    """

    def __init__(self, world: World):
        super().__init__(world)
        self._calls = 0
        self._means: dict[int, dict[str, tuple[float, int]]] = defaultdict(dict)

    def choose(self, key: int) -> str:
        self._calls += 1
        known = self._means.get(key)
        if known and self._calls <= 10_000:
            return min(known, key=lambda arm: known[arm][0])
        return "torch/fft" if self.elements(key) > 1000 else self.compiled_loop()

    def learn(self, arm: str, key: int, seconds: float) -> None:
        if seconds >= 100e-6:
            mean, count = self._means[key].get(arm, (0.0, 0))
            self._means[key][arm] = ((mean * count + seconds) / (count + 1), count + 1)


class SciPyLike(Chooser):
    """`scipy.signal.choose_conv_method` of 1.17 for each row: counted operations times shipped constants."""

    def choose(self, key: int) -> str:
        rows, n = self.costs.sizes[key]
        full = 2 * n - 1
        by_fft, direct = 3 * rows * full * math.log(full), rows * n * n
        is_faster = 1.7649070e-9 * by_fft < 2.1414831e-10 * direct - 1e-3
        product = "torch/product" if "torch/product" in self.costs.arms else "torch/dense"
        return "torch/fft" if is_faster else product


class MeasureAll(Chooser):
    """Every arm at the first sight of a size, once to warm up and then `count` times; the best stays for ever."""

    count = 3
    statistic: Callable[[list[float]], float] = staticmethod(statistics.fmean)
    compiles = True

    def __init__(self, world: World):
        super().__init__(world)
        self._best: dict[int, str] = {}

    def choose(self, key: int) -> str:
        if key not in self._best:
            self._best[key] = self._measure(key)
        return self._best[key]

    def _measure(self, key: int) -> str:
        found = {}
        for arm in self.costs.arms:
            if not self.compiles and arm in self.costs.needs:
                continue
            if self.world.run(arm, key) is not None:
                times = [self.world.run(arm, key) for _ in range(self.count)]
                found[arm] = self.statistic([each for each in times if each is not None])
        return min(found, key=found.__getitem__)


class MeasureThree(MeasureAll):
    """cuDNN's benchmark mode and torch.cuda.tunable: a few runs of each, the mean."""


class MeasureTwenty(MeasureAll):
    """Triton's and Inductor's `do_bench`: some twenty runs of each, the median."""

    count = 20
    statistic = staticmethod(statistics.median)


class MeasureReady(MeasureAll):
    """FFTW's planner: the least of eight runs of each, of those that need no compiler; kept for each size."""

    count = 8
    statistic = staticmethod(min)
    compiles = False


PLAYERS: dict[str, type[Player]] = {
    "this package": Ours,
    "this package, calibrated before": Calibrated,
    "knows all costs but not the future": Informed,
    "estimate only": EstimateOnly,
    "HPFRACC, rules": HPFRACC,
    "HPFRACC, fed": HPFRACCFed,
    "Renacer": Renacer,
    "SciPy-like": SciPyLike,
    "measure all, 3 (cuDNN, TunableOp)": MeasureThree,
    "measure all, 20 (do_bench)": MeasureTwenty,
    "measure what is compiled, 8 (FFTW)": MeasureReady,
    "torch.fft": FixedFFT,
}
