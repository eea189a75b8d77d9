"""What every kind of fractional direction answers, and the types of what it is asked with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from hpfracc_nn.selection import Site

Group = dict[str, Any]  # a parameter group: the options of the base optimizer, alpha, kind, memory
State = dict[str, Any]  # of one parameter: the base optimizer's, and what the kind keeps
Directions = Callable[[], list[Tensor]]  # makes them, and changes the states


class Kind(Protocol):
    """What takes the place of the gradient."""

    @property
    def needs_closure(self) -> bool:
        """Whether gradients at other points are wanted, so that `step` needs a closure."""

    @property
    def keeps(self) -> tuple[str, ...]:
        """The keys of what it keeps in a parameter's state."""

    def fault(self, group: Group) -> str | None:
        """Return what is wrong with the options of a group for this kind, or None."""

    def is_identity(self, group: Group) -> bool:
        """Whether the gradient stays what it is, and nothing has to be kept."""

    def rewind(self, state: State) -> None:
        """Take back that a step was taken, without gradient or rate, which was to make the state and no more."""

    def prepared(
        self, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], site: Site
    ) -> Directions:
        """Return what makes the directions and keeps in the states what the next step needs.

        Whatever can be refused is refused here, and nothing is changed: another group may still be refused.
        """
