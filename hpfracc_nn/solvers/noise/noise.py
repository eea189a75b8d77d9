"""The noise that drives a stochastic equation: what every noise has, Brownian motion, and increments from an array.

A noise is a frozen value that makes an array of increments over `n_steps` equal steps, time first. The noise itself
holds formulas alone: random numbers come from a `Source`, which is a framework's generator with a dtype and a device,
so that one class serves every framework. `increments` draws by NumPy.
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
        name: The name by which the noise is found in `NOISES`.
        is_brownian: Whether increments are independent and normal with variance dt: Milstein's scheme, Runge-Kutta
            schemes of order 1.5 and the hybrid weights rely on this.
        is_continuous: Whether paths are continuous; where paths jump there is no Stratonovich integral.
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

        By default this is so if paths jump, have bounded variation, or are as regular as those of Brownian motion.
        """
        return not self.is_continuous or self.regularity >= 1 or (self.regularity == 0.5 and not self.is_open)

    @property
    def regularity(self) -> float:
        """The Hoelder regularity of paths: they are Hoelder continuous with each smaller exponent; 0 if they jump."""
        return 0.5

    @property
    def is_open(self) -> bool:
        """Whether paths are more regular than `regularity`, a parameter's lower bound; True where that is a tensor."""
        return False

    @property
    def trailing(self) -> Shape:
        """The last axes that a step's shape must have: those of parameters with a value for each channel; else ()."""
        return ()

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """Return noises of this kind, with numbers for parameters; the tests of all noises draw from them.

        Raises:
            NotImplementedError: The noise has no examples.
        """
        raise NotImplementedError(f"{cls.__name__}.examples: it has none; define the method to have the noise tested.")

    def covariance(self, n_steps: int, dt: float) -> np.ndarray | None:
        """Return the covariance of the increments over the first steps in closed form, [n_steps, n_steps].

        None stands for an infinite covariance. Parameters must be numbers, one for all channels.

        Raises:
            NotImplementedError: The noise states no closed form.
        """
        raise NotImplementedError(
            f"{type(self).__name__}.covariance: it states none; define the method, or estimate it from increments."
        )

    def characteristic(self, k: np.ndarray, dt: float) -> np.ndarray:
        """Return E exp(i k x), x the increment over the first step, in closed form; by default as of a Gaussian noise.

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
        """Return the state before the first of `n_steps` steps in all; a random state is drawn from `source`."""
        return ()

    @abstractmethod
    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """Return the increments over the next steps, [n_steps, *shape], and the state after them.

        Args:
            n_steps: How many steps, at least 1.
            shape: The shape of one step's increments; all entries are independent paths.
            dt: The step, positive, in the caller's time unit.
            source: Where random numbers come from; the result has the source's dtype and device.
            state: The state after the steps before, as `start` or this method returned it.
        """


def fits(owner: str, noise: Noise, shape: Shape) -> None:
    """Raise an error unless a step's shape ends with the axes for which the noise's parameters have values.

    Raises:
        ValueError: The last axes of `shape` are others than `noise.trailing`.
    """
    wanted = noise.trailing
    if wanted and shape[-len(wanted) :] != wanted:
        raise ValueError(
            f"{owner}(shape={shape}): needs {wanted} as its last axes, for which {type(noise).__name__} has "
            "parameters; pass that shape, or one value for all channels."
        )


@dataclass(frozen=True)
class Range:
    """The interval in which a parameter may lie; infinite ends never belong to the interval.

    Attributes:
        low: The lower end.
        high: The upper end.
        has_low: Whether the lower end belongs to the interval.
        has_high: Whether the upper end belongs to the interval.
    """

    low: float = -math.inf
    high: float = math.inf
    has_low: bool = False
    has_high: bool = False

    def holds(self, x: np.ndarray) -> np.ndarray:
        """Return a boolean for each entry of x: whether the entry is inside; NaN is not."""
        above = x >= self.low if self.has_low else x > self.low
        return above & (x <= self.high if self.has_high else x < self.high)

    def text(self, name: str) -> str:
        """Return the condition on a parameter as text for a message, such as "0 < hurst < 1"."""
        below = "" if self.low == -math.inf else f"{self.low:g} {'<=' if self.has_low else '<'} "
        above = "" if self.high == math.inf else f" {'<=' if self.has_high else '<'} {self.high:g}"
        if below and above:
            return f"{below}{name}{above}"
        return f"a finite {name}" + (f" > {self.low:g}" if below else above)


UNIT = Range(0.0, 1.0)
POSITIVE = Range(0.0)
FINITE = Range()


def parameter(owner: str, name: str, value: Parameter, within: Range, example: str) -> Parameter:
    """Return a noise's parameter, checked: a float, a tuple of floats, one for each channel, or a tensor as it is.

    A tensor is not read, so that nothing waits for its device.

    Args:
        owner: The name of the noise's class, for messages.
        name: The name of the parameter, for messages.
        value: A number, several numbers, or a framework's tensor.
        within: The interval in which numbers must lie.
        example: A valid value as text, for messages.

    Raises:
        TypeError: `value` is neither numbers nor a tensor.
        ValueError: A number is outside of `within`, or `value` has several axes.
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
    """Return the bounds of a Hurst index `value` as floats, or None if `bounds` is None.

    Raises:
        TypeError: `bounds` is not a pair of numbers.
        ValueError: `bounds` are not within [0, 1], or a Hurst index that is a number is not within `bounds`.
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
    """Return whether a parameter is a framework's array, which may be learned, and not numbers."""
    return framework_of(type(value)) != "numpy" and hasattr(value, "shape")


def shape_of(value: Parameter) -> Shape:
    """Return the shape of a parameter; () for a number."""
    return tuple(value.shape) if is_tensor(value) else np.shape(value)


@dataclass(frozen=True)
class Brownian(Noise):
    """Standard Brownian motion: independent normal increments of variance dt.

    The unit of Brownian motion is the root of the caller's time unit.

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
    """A noise whose increments the caller passes: measured, drawn elsewhere, or made by other means.

    Args:
        values: An array of the framework that solves, [n_steps, *shape]; [n_steps, 2, *shape] where a scheme has two
            streams: the increments, and independent numbers of the same law. A solve that needs another shape raises a
            ValueError.
        holder: The Hoelder regularity of the paths: they are Hoelder continuous with each smaller exponent.
        brownian: Whether the increments are those of Brownian motion, on which schemes of higher order rely.

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
        """See `Noise.is_brownian`; as the caller said by `brownian`."""
        return self.brownian

    @property
    def regularity(self) -> float:
        """See `Noise.regularity`; as the caller said by `holder`."""
        return self.holder

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`.

        Raises:
            ValueError: `values` have another shape than (n_steps, *shape).
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
        shape: The shape of one step's increments; all entries are independent.
        dt: The step, positive, in the caller's time unit.
        rng: The generator of random numbers.

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
