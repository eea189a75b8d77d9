"""What a noise is: a process with stationary increments that drives a stochastic equation; a frozen value.

Asked for the increments over `n_steps` equal steps it answers with an array, time first. A noise holds formulas alone:
random numbers come from a `Source`, which is a framework's generator with a dtype and a device, so that the same text
serves every framework.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.source import Source

State = tuple[Array, ...]  # what a noise carries from one block of steps to the next
Shape = tuple[int, ...]
Parameter = Any  # a number, or a framework's tensor where it is learned


@dataclass(frozen=True, eq=False)
class Noise:
    """A noise.

    Attributes:
        name: By which it is chosen.
        is_brownian: Whether increments are independent and normal with variance dt: Milstein's scheme, Runge-Kutta
            schemes of order 1.5 and the hybrid weights stand on it.
        is_continuous: Whether paths are; where they jump there is no Stratonovich integral.
        is_whole: Whether all steps are drawn at once, because no state of fixed size carries the past.
    """

    name: ClassVar[str]
    is_brownian: ClassVar[bool] = False
    is_continuous: ClassVar[bool] = True
    is_whole: ClassVar[bool] = False

    @property
    def is_semimartingale(self) -> bool:
        """Whether sums of left-point values times increments converge to an Ito integral."""
        return True

    @property
    def regularity(self) -> float:
        """Paths are Hoelder continuous with each exponent below this; 0 where they jump."""
        return 0.5

    @property
    def trailing(self) -> Shape:
        """The last axes of a shape that parameters with a value per channel ask for."""
        return ()

    def start(self, shape: Shape, dt: float, source: Source) -> State:
        """Return the state before the first step; draws from `source` where it is random."""
        return ()

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """Return the increments over the next steps, [n_steps, *shape], and the state after them.

        Args:
            n_steps: At least 1.
            shape: Of one step; all its entries are independent paths.
            dt: The step, positive.
            source: Where random numbers come from; the result has its dtype and device.
            state: After the steps before; as `start` or this method returned it.
        """
        raise NotImplementedError


def checked(owner: str, argument: str, value: Parameter, low: float, high: float, way_out: str) -> Parameter:
    """Return a parameter, numbers as floats; raise unless it is a tensor or in (low, high), and then finite.

    A framework's tensor is not read, so that nothing waits for its device.

    Raises:
        TypeError: It is neither a number nor a tensor.
        ValueError: It is outside.
    """
    if hasattr(value, "requires_grad"):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{owner}({argument}={value!r}): needs a number or a tensor; {way_out}") from None
    if not (low < number < high and math.isfinite(number)):
        wanted = f"{low:g} < {argument} < {high:g}" if math.isfinite(high) else f"a finite {argument} > {low:g}"
        raise ValueError(f"{owner}({argument}={value}): needs {wanted}; {way_out}")
    return number
