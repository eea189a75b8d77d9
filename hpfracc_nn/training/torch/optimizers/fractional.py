"""What all fractional optimizers share: the gradients make room for directions while the base optimizer steps.

A step evaluates the closure, lets each group's kind make directions from the gradients, hands these to the base
optimizer's own step as `grad`, and puts the gradients back. So the base optimizer is torch's, with all its options and
implementations, and whoever reads `grad` before or after the step, hooks included, finds what backward left there.
Weight decay, where the base optimizer adds it to the gradient, is added to the direction: it is not averaged.

Where alpha is 1 nothing is replaced and nothing kept: state, state_dict and results are the base optimizer's. When
alpha becomes 1 in the course of a run the history is dropped, and begins anew should alpha become less again.

Under torch.compile the step is an eager function around the base optimizer's step, which is compiled: the directions
are made at run time, by the kernel that is best then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.probe import around_compiled, uncompiled
from hpfracc_nn.selection import BackendManager, default_manager
from hpfracc_nn.training.torch.optimizers.caputo import mean_gradients
from hpfracc_nn.training.torch.optimizers.kind import Group, State
from hpfracc_nn.training.torch.optimizers.kinds import KINDS, check_options, is_identity, kind_of

_KEPT = frozenset(key for kind in KINDS.values() for key in kind.keeps)

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object


class Fractional(_Base):
    """To be inherited before one of torch's optimizers, whose options it takes and passes on.

    Args:
        params: As of the base optimizer.
        options: Of the base optimizer, in its order.
        alpha: Order, in (0, 1]; 1 is the base optimizer. Each group may have its own, also one that changes.
        kind: What takes the gradient's place; a key of `KINDS`.
        memory: How many gradients are averaged, that of the step included, or "exponentials".
        generator: Where the random numbers of kind "fcgd" begin; None is torch's own. It is used when a group is
            added; then on they follow from the group's seed and the number of steps, both in `state_dict`.
        manager: Who chooses the kernel; None is the process-wide BackendManager.
        named: Options of the base optimizer by name.
    """

    def __init__(
        self,
        params: Any,
        *options: Any,
        alpha: float = 1.0,
        kind: str = "integral",
        memory: int | str = 10,
        generator: torch.Generator | None = None,
        manager: BackendManager | None = None,
        **named: Any,
    ):
        self._own_defaults = {"alpha": alpha, "kind": kind, "memory": memory}
        self._generator = generator
        self._site = (manager or default_manager()).site("history_mix", "torch", type(self).__name__)
        super().__init__(params, *options, **named)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as of the base optimizer; alpha, kind and memory that it does not bring are the defaults.

        Raises:
            TypeError: One of these has no usable type.
            ValueError: One of these is out of range or unknown.
        """
        for name, value in self._own_defaults.items():
            self.defaults.setdefault(name, value)
        if isinstance(param_group, dict):
            check_options({**self.defaults, **param_group})
        super().add_param_group(param_group)
        self._settle(self.param_groups[-1])

    @around_compiled
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and return what the closure returned.

        Args:
            closure: Evaluates the loss anew and returns it. For kind "caputo_terminal" it must be given, and must
                clear the gradients itself; it is called at other points first.

        Raises:
            RuntimeError: A gradient cannot be averaged: it is sparse, a tensor's subclass, or still scaled; or there is
                no closure where one is needed.
            LookupError: No kernel accepts the gradients.
        """
        means, loss = self._prepared(closure), None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        exchange = self._exchange(means)
        try:
            exchange.do()
            self._base_step()
        finally:
            exchange.undo()
        self._keep(exchange)
        return loss

    @around_compiled
    def _base_step(self) -> None:
        """Take the base optimizer's step, without its hooks: they run around the whole."""
        step: Any = super().step
        if getattr(step, "hooked", False):  # since one of the base class was made in this process
            step = step.__func__.__wrapped__.__get__(self)
        step()

    @uncompiled
    def _prepared(self, closure: Callable[[], Any] | None) -> dict[Tensor, Tensor]:
        """Check the options as they are now; return the gradients' means along the way, for kinds that want them."""
        for group in self.param_groups:
            check_options(group)
            self._settle(group)
        groups = [group for group in self.param_groups if kind_of(group).needs_closure and not is_identity(group)]
        if not groups:
            return {}
        if closure is None:
            raise RuntimeError(
                f"{type(self).__name__}.step() with kind {groups[0]['kind']!r} needs gradients at other points; pass a "
                "closure that clears the gradients, evaluates the loss, calls backward and returns the loss."
            )
        return mean_gradients(groups, closure)

    @uncompiled
    def _exchange(self, means: dict[Tensor, Tensor]) -> _Exchange:
        """Return the directions, to be put where the gradients are."""
        exchange = _Exchange()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            for group in self.param_groups:
                params = [p for p in group["params"] if p.grad is not None]
                if is_identity(group):
                    self._forget(params)
                    continue
                for p in params:
                    self._check_gradient(p.grad)
                states = [self.state[p] if self.state.get(p) else exchange.fresh(p) for p in params]
                grads = [means.get(p, p.grad) for p in params]
                directions = kind_of(group).directions(group, params, grads, states, self._site)
                exchange.prepare(params, directions)
        return exchange

    @uncompiled
    def _keep(self, exchange: _Exchange) -> None:
        """Keep the states of parameters that had none; not before: the base optimizer begins where one is empty."""
        for p, state in exchange.states.items():
            self.state[p].update(state)

    def _forget(self, params: list[Tensor]) -> None:
        for p in params:
            state = self.state.get(p)
            if state and not _KEPT.isdisjoint(state):
                for key in _KEPT:
                    state.pop(key, None)

    def _check_gradient(self, grad: Tensor) -> None:
        name = type(self).__name__
        if grad.layout is not torch.strided:
            raise RuntimeError(
                f"{name} does not support sparse gradients where alpha is less than 1: each would have to be kept with "
                "its own places; pass alpha=1 for this group, or make the gradient dense."
            )
        if type(grad) not in (Tensor, torch.nn.Parameter):
            raise RuntimeError(
                f"{name} does not support gradients of type {type(grad).__name__} where alpha is less than 1; pass "
                "alpha=1 for this group, or use plain tensors, such as those of DistributedDataParallel."
            )
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            raise RuntimeError(
                f"{name} cannot average gradients that are still scaled, each by another factor: unscale them before "
                "the step, as GradScaler does, and leave grad_scale and found_inf unset."
            )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler may leave the gradients scaled: the base optimizer's answer, where nothing is kept."""
        return self.__dict__.get("_base_supports_amp_scaling", False) and all(
            is_identity(group) for group in self.param_groups
        )

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        self._base_supports_amp_scaling = supports

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as of the base optimizer; where that one saved it, each group's alpha, kind and memory stay."""
        saved, present = state_dict["param_groups"], self.param_groups
        if len(saved) == len(present):  # or else it is the base optimizer that says so
            own = (*self._own_defaults, "seed")
            kept = [{name: group[name] for name in own if name in group} for group in present]
            groups = [{**mine, **group} for mine, group in zip(kept, saved, strict=True)]
            state_dict = {**state_dict, "param_groups": groups}
        super().load_state_dict(state_dict)

    def _settle(self, group: Group) -> None:
        """Give a group what it needs, also where its options were changed: a plain number, and the seed of its kind."""
        group["alpha"] = float(group["alpha"])  # what is saved is read without knowing NumPy
        if group["kind"] == "fcgd" and "seed" not in group:
            group["seed"] = int(torch.randint(2**62, (), generator=self.__dict__.get("_generator")))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_own_defaults": self._own_defaults, "_site": self._site}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # one that was saved by the base optimizer lacks them
            for name, value in self._own_defaults.items():
                group.setdefault(name, value)
            self._settle(group)


class _Exchange:
    """Directions in the place of gradients, for as long as the base optimizer steps."""

    def __init__(self) -> None:
        self.states: dict[Tensor, State] = {}
        self._directions: dict[Tensor, Tensor] = {}
        self._gradients: dict[Tensor, Tensor | None] = {}

    def fresh(self, p: Tensor) -> State:
        """Return a new state of a parameter."""
        return self.states.setdefault(p, {})

    def prepare(self, params: list[Tensor], directions: list[Tensor]) -> None:
        self._directions.update(zip(params, directions, strict=True))

    @uncompiled
    def do(self) -> None:
        for p, direction in self._directions.items():
            self._gradients[p] = p.grad
            p.grad = direction

    @uncompiled
    def undo(self) -> None:
        for p, gradient in self._gradients.items():
            p.grad = gradient
