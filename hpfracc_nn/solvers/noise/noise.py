"""What a noise is: a process with stationary increments that drives a stochastic equation; a frozen value.

Asked for the increments over `n_steps` equal steps it answers with an array, time first. A noise holds formulas alone:
random numbers come from a `Source`, which is a framework's generator with a dtype and a device, so that the same text
serves every framework.

Brownian motion and increments at hand are here, and `increments`, which draws by NumPy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.dispatch import framework_of
from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.source import NumpySource, Source

State = tuple[Any, ...]  # what a noise carries from one block of steps to the next
Shape = tuple[int, ...]
Parameter = Any  # a number, or a framework's tensor where it is learned


@dataclass(frozen=True, eq=False)
class Noise(ABC):
    """A noise: what drives a stochastic equation, a process that begins at 0.

    Attributes:
        name: By which it is chosen.
        is_brownian: Whether increments are independent and normal with variance dt: Milstein's scheme, Runge-Kutta
            schemes of order 1.5 and the hybrid weights stand on it.
        is_continuous: Whether paths are; where they jump there is no Stratonovich integral.
        is_whole: Whether all steps are drawn at once, because no state of fixed size carries the past.

    Examples:
        >>> class UniformSteps(Noise):
        ...     name = "uniform_steps"
        ...
        ...     def increments(self, n_steps, shape, dt, source, state):
        ...         return (12 * dt) ** 0.5 * (source.uniform((n_steps, *shape)) - 0.5), ()
        >>> from hpfracc_nn.solvers import increments
        >>> increments(
        ...     UniformSteps(), 100_000, dt=0.01, generator=torch.Generator().manual_seed(0)
        ... ).var()
        tensor(0.0100)
    """

    name: ClassVar[str]
    is_brownian: ClassVar[bool] = False
    is_continuous: ClassVar[bool] = True
    is_whole: ClassVar[bool] = False

    @property
    def is_semimartingale(self) -> bool:
        """Whether sums of left-point values times increments converge to an Ito integral as steps become short.

        By default where paths jump, have bounded variation, or are as regular as those of Brownian motion.
        """
        return not self.is_continuous or self.regularity >= 1 or (self.regularity == 0.5 and not self.is_open)

    @property
    def regularity(self) -> float:
        """Paths are Hoelder continuous with each exponent below this; 0 where they jump."""
        return 0.5

    @property
    def is_open(self) -> bool:
        """Whether `regularity` is an end that is not reached: the lower bound of a parameter that is a tensor."""
        return False

    @property
    def trailing(self) -> Shape:
        """The last axes of a shape that parameters with a value per channel ask for."""
        return ()

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """Return noises of this kind, with numbers for parameters; the tests of all noises draw from them.

        Raises:
            NotImplementedError: The noise has none.
        """
        raise NotImplementedError(f"{cls.__name__}.examples: it has none; define the method to have the noise tested.")

    def covariance(self, n_steps: int, dt: float) -> np.ndarray | None:
        """Return the covariance of the increments over some steps in closed form, [n_steps, n_steps].

        None where it is infinite. Parameters must be numbers, one for all channels.

        Raises:
            NotImplementedError: The noise states no closed form.
        """
        raise NotImplementedError(
            f"{type(self).__name__}.covariance: it states none; define the method, or estimate it from increments."
        )

    def characteristic(self, k: np.ndarray, dt: float) -> np.ndarray:
        """Return E exp(i k x), x the increment over the first step, in closed form; that of a Gaussian by default.

        Raises:
            NotImplementedError: The noise states no closed form.
        """
        variance = self.covariance(1, dt)
        if variance is None:
            raise NotImplementedError(
                f"{type(self).__name__}.characteristic: its variance is infinite, so that it is not Gaussian; define "
                "the method."
            )
        return np.exp(-np.square(k) * variance[0, 0] / 2)

    def start(self, n_steps: int, shape: Shape, dt: float, source: Source) -> State:
        """Return the state before the first of `n_steps` steps in all; draws from `source` where it is random."""
        return ()

    @abstractmethod
    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """Return the increments over the next steps, [n_steps, *shape], and the state after them.

        Args:
            n_steps: At least 1.
            shape: Of one step; all its entries are independent paths.
            dt: The step, positive, in the caller's time unit.
            source: Where random numbers come from; the result has its dtype and device.
            state: After the steps before; as `start` or this method returned it.
        """


def fits(owner: str, noise: Noise, shape: Shape) -> None:
    """Raise unless the last axes of `shape` are those that the noise's parameters have values for.

    Raises:
        ValueError: They are not.
    """
    wanted = noise.trailing
    if wanted and shape[-len(wanted) :] != wanted:
        raise ValueError(
            f"{owner}(shape={shape}): needs {wanted} as its last axes, for which {type(noise).__name__} has "
            "parameters; pass that shape, or one value for all channels."
        )


@dataclass(frozen=True)
class Range:
    """Where a parameter may lie; infinite ends never belong to it.

    Attributes:
        low: The lower end.
        high: The upper end.
        has_low: Whether the lower end belongs to it.
        has_high: Whether the upper end does.
    """

    low: float = -math.inf
    high: float = math.inf
    has_low: bool = False
    has_high: bool = False

    def holds(self, x: np.ndarray) -> np.ndarray:
        """Return for each number whether it is inside; NaN is not."""
        above = x >= self.low if self.has_low else x > self.low
        return above & (x <= self.high if self.has_high else x < self.high)

    def text(self, name: str) -> str:
        """Return what is asked of a parameter, as a message says it."""
        below = "" if self.low == -math.inf else f"{self.low:g} {'<=' if self.has_low else '<'} "
        above = "" if self.high == math.inf else f" {'<=' if self.has_high else '<'} {self.high:g}"
        if below and above:
            return f"{below}{name}{above}"
        return f"a finite {name}" + (f" > {self.low:g}" if below else above)


UNIT = Range(0.0, 1.0)
POSITIVE = Range(0.0)
FINITE = Range()


def parameter(owner: str, name: str, value: Parameter, within: Range, example: str) -> Parameter:
    """Return a parameter: a float, a tuple of floats with one for each channel, or a framework's tensor as it is.

    A tensor is not read, so that nothing waits for its device.

    Args:
        owner: Who asks, for messages.
        name: Of the parameter.
        value: A number, several numbers, or a tensor.
        within: Where numbers must lie.
        example: Of a value.

    Raises:
        TypeError: It is neither numbers nor a tensor.
        ValueError: A number is outside.
    """
    if is_tensor(value):
        return value
    found = errors.as_numbers(value)
    if found is None:
        raise TypeError(f"{owner}({name}={value!r}): needs a number or a tensor; pass for example {example}.")
    if found.ndim > 1:
        raise ValueError(
            f"{owner}({name} of shape {found.shape}): needs one number, or one for each channel; pass for example "
            f"{example}."
        )
    wrong = found[~within.holds(found)]
    if wrong.size:
        raise ValueError(f"{owner}({name}={wrong.flat[0]:g}): needs {within.text(name)}; pass for example {example}.")
    return float(found) if found.ndim == 0 else tuple(found.tolist())


def bounds_of(owner: str, value: Parameter, bounds: Any) -> tuple[float, float] | None:
    """Return the bounds of a Hurst index as floats, or None where there are none.

    Raises:
        TypeError: They are not a pair of numbers.
        ValueError: They are not within [0, 1], or a number is not within them.
    """
    if bounds is None:
        return None
    low, high = errors.pair(owner, "bounds", bounds, "(0.5, 1)")
    if not 0 <= low < high <= 1:
        raise ValueError(f"{owner}(bounds={bounds}): needs 0 <= low < high <= 1; pass for example (0.5, 1).")
    if not is_tensor(value) and not (low <= np.min(value) and np.max(value) <= high):
        raise ValueError(f"{owner}(hurst={value}, bounds={bounds}): needs hurst within its bounds; widen them.")
    return low, high


def is_tensor(value: Any) -> bool:
    """Whether a parameter is a framework's array, which may be learned, and not numbers."""
    return framework_of(type(value)) != "numpy" and hasattr(value, "shape")


def shape_of(value: Parameter) -> Shape:
    """Return the shape of a parameter: () of a number."""
    return tuple(value.shape) if is_tensor(value) else np.shape(value)


@dataclass(frozen=True)
class Brownian(Noise):
    """Standard Brownian motion: independent normal increments of variance dt.

    Its unit is the root of the caller's time unit.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992), section 2.4.

    Examples:
        >>> Brownian().covariance(2, dt=0.01)
        array([[0.01, 0.  ],
               [0.  , 0.01]])
    """

    name: ClassVar[str] = "brownian"
    is_brownian: ClassVar[bool] = True

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """See `Noise.examples`."""
        return (cls(),)

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`."""
        return dt * np.eye(n_steps)

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        found = source.normal((n_steps, *shape))
        found *= math.sqrt(dt)
        return found, ()


@dataclass(frozen=True, eq=False)
class Given(Noise):
    """A noise whose increments are at hand: measured, drawn elsewhere, or made by other means.

    Args:
        values: An array of the framework that solves, [n_steps, *shape]; [n_steps, 2, *shape] where a scheme has two
            streams, which are the increments, and independent numbers of the same law beside them. A solve that asks
            for another shape raises a ValueError.
        holder: Paths are Hoelder continuous with each exponent below this.
        brownian: Whether the increments are those of Brownian motion, which schemes of higher order stand on.

    Examples:
        >>> dw = torch.full((100, 1), 0.01)  # a path that goes straight from 0 to 1
        >>> fsdeint(
        ...     SDE(lambda t, y: 0 * y, lambda t, y: y),
        ...     torch.ones(1),
        ...     np.linspace(0, 1, 101),
        ...     noise=Given(dw),
        ... )[-1]
        tensor([2.7048])
        >>> round(1.01**100, 4)
        2.7048
    """

    values: Any
    holder: float = 0.5
    brownian: bool = True

    name: ClassVar[str] = "given"
    is_whole: ClassVar[bool] = True

    @property
    def is_brownian(self) -> bool:  # type: ignore[override]
        """Whether they are said to be."""
        return self.brownian

    @property
    def regularity(self) -> float:
        """What is said of them."""
        return self.holder

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`.

        Raises:
            ValueError: There are others than are asked for.
        """
        if tuple(self.values.shape) != (n_steps, *shape):
            raise ValueError(
                f"Given(values of shape {tuple(self.values.shape)}): needs the increments of {n_steps} steps, of shape "
                f"{(n_steps, *shape)}, for this equation, scheme and mesh; pass these, or another dt."
            )
        return source.cast(self.values), ()


def increments(
    noise: Noise, n_steps: int, shape: Sequence[int] = (), *, dt: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the increments of a noise over equal steps, [n_steps, *shape] in float64.

    Args:
        noise: The noise.
        n_steps: How many steps.
        shape: Of one step; all entries are independent.
        dt: The step, positive, in the caller's time unit.
        rng: Where the randomness comes from.

    Raises:
        ValueError: A number is out of range, or `shape` is not that of the noise's parameters.
        TypeError: `n_steps` or a size is no whole number, or `dt` no real one.

    Examples:
        >>> from hpfracc_nn.solvers import noise
        >>> dw = noise.increments(
        ...     Brownian(), 100, (4000,), dt=0.01, rng=np.random.default_rng(0)
        ... )
        >>> dw.shape, round(dw.sum(0).var().item(), 1)
        ((100, 4000), 1.0)
    """
    steps = errors.count("increments", "n_steps", n_steps)
    sizes = tuple(errors.count("increments", "shape", size, 0) for size in shape)
    fits("increments", noise, sizes)
    step = errors.positive_step("increments", dt)
    source = NumpySource(rng)
    state = noise.start(steps, sizes, step, source)
    return noise.increments(steps, sizes, step, source, state)[0]
