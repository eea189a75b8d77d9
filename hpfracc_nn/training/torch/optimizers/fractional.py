"""What all fractional optimizers share: the gradients make room for directions while the base optimizer steps.

A step evaluates the closure, lets each group's kind make directions from the gradients, hands these to the base
optimizer's own step as `grad`, and puts the gradients back. So the base optimizer is torch's, with all its options and
implementations, and whoever reads `grad` before or after the step, hooks included, finds what backward left there.
Weight decay, where the base optimizer adds it to the gradient, is added to the direction: it is not averaged.

Where alpha is 1 nothing is replaced and nothing kept: state, state_dict and results are the base optimizer's. When
alpha becomes 1 in the course of a run the history is dropped, and begins anew should alpha become less again. So is
what another kind kept, where the kind that a group has now does not keep it too.

All that can be refused is refused before anything is changed, in whatever group. Where a kernel or the base optimizer
fails after that, as where memory runs out, gradients that were averaged stay remembered, as its own moments do.

A first step without rate and gradient is torch's distributed checkpoints asking for a state to fill: it makes the state
and leaves no trace in it. A history that was loaded beside a count of steps that it does not fit begins anew.

Parameters may be DTensors, as of `fully_shard` and of tensor parallel plans. An average is formed number by number, so
that every process keeps the past of its own part of a parameter and nothing is exchanged. States hold DTensors that lie
as the parameter does, for checkpoints to read and to write; kernels get the parts. The other kinds are torch's
operations, which follow DTensors by themselves: whether a parameter moved at all is known to all processes together.

Under torch.compile the step is an eager function around the base optimizer's step, which is compiled: the directions
are made at run time, by the kernel that is best then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.parameters import is_spread
from hpfracc_nn.fractional.torch.tracing import around_compiled, uncompiled
from hpfracc_nn.selection import BackendManager, Site, given_manager
from hpfracc_nn.training.torch.optimizers.directions import (
    KINDS,
    Average,
    Directions,
    Group,
    State,
    View,
    check_options,
    is_behind,
    is_identity,
    kind_of,
    mean_gradients,
)

_KEPT = frozenset(key for kind in KINDS.values() for key in kind.keeps)
_DROPPED = {name: _KEPT - frozenset(kind.keeps) for name, kind in KINDS.items()}  # what a kind does not go on with

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
        generator: Where the random numbers of kind "fcgd" begin. It is used when a group is added; then on they follow
            from the group's seed and the number of steps, both in `state_dict`. None is the place of the group as its
            seed: the same numbers in every run, and in every process, without which replicas would differ.
        manager: Who chooses the kernel; None is the process-wide BackendManager.
        named: Options of the base optimizer by name.
    """

    _takes_sparse = False  # where alpha is 1

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
        self._site = given_manager(type(self).__name__, manager).site("history_mix", "torch", type(self).__name__)
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
        self._settle()

    @around_compiled
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and return what the closure returned.

        Args:
            closure: Evaluates the loss anew and returns it. For kind "caputo_terminal" it must be given, and must
                clear the gradients itself; it is called at other points first.

        Raises:
            RuntimeError: A gradient cannot be averaged: it is sparse, a tensor's subclass, or still scaled; the state
                is that of another memory or parameter; or there is no closure where one is needed.
            LookupError: No kernel accepts the gradients.
        """
        makes_states = closure is None and self._only_makes_states()
        means, loss = self._prepared(closure, makes_states), None
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
        if makes_states:
            self._rewind()
        return loss

    @around_compiled
    def _base_step(self) -> None:
        """Take the base optimizer's step without its hooks, which already run around this optimizer's step."""
        step: Any = super().step
        if getattr(step, "hooked", False):  # since one of the base class was made in this process
            step = step.__func__.__wrapped__.__get__(self)
        step()

    @uncompiled
    def _only_makes_states(self) -> bool:
        """Whether this is the step by which torch's distributed checkpoints make states: no rate, and no gradient."""
        if self.state or not all(_is_zero(group["lr"]) for group in self.param_groups):
            return False
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return all(grad.layout is torch.strided and not grad.any() for grad in grads)

    @uncompiled
    def _rewind(self) -> None:
        """Reset what the kinds count in the states, as if no step had been taken."""
        for group in self.param_groups:
            for p in group["params"]:
                kind_of(group).rewind(self.state.get(p) or {})

    @uncompiled
    def _prepared(self, closure: Callable[[], Any] | None, makes_states: bool) -> dict[Tensor, Tensor]:
        """Check all options, and return by parameter the mean gradient on the way from 0, for kind "caputo_terminal".

        The result is {} for other kinds, and where the step only makes states.
        """
        for group in self.param_groups:
            check_options(group)
        self._settle()
        groups = [group for group in self.param_groups if kind_of(group).needs_closure and not is_identity(group)]
        if makes_states or not groups:
            return {}
        if closure is None:
            raise RuntimeError(
                f"{type(self).__name__}.step() with kind {groups[0]['kind']!r} needs gradients at other points; pass a "
                "closure that clears the gradients, evaluates the loss, calls backward and returns the loss."
            )
        return mean_gradients(groups, closure)

    @uncompiled
    def _exchange(self, means: dict[Tensor, Tensor]) -> _Exchange:
        """Return an exchange that is ready to put directions in the place of gradients, for all groups.

        Args:
            means: By parameter, what replaces the gradient from which its direction is made.
        """
        exchange = _Exchange()
        identities = [group for group in self.param_groups if is_identity(group)]
        others = [(place, group) for place, group in enumerate(self.param_groups) if not is_identity(group)]
        known: dict[int, list[View]] = self.__dict__.get("_views", {})
        self._views = {place: known.get(place, []) for place, _ in others}
        if others:
            self._check_dense(identities)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            found = [self._prepared_group(group, means, exchange, self._views[place]) for place, group in others]
            for (_, group), (params, directions) in zip(others, found, strict=True):
                self._forget(group, _DROPPED[group["kind"]])
                exchange.prepare(params, directions())
        for group in identities:
            self._forget(group, _KEPT)
        return exchange

    def _forget(self, group: Group, keys: frozenset[str]) -> None:
        """Drop the entries `keys` from the states of a group's parameters, also of those without gradient."""
        for p in group["params"]:
            state = self.state.get(p)
            if state and not keys.isdisjoint(state):
                _drop(state, keys)

    def _prepared_group(
        self, group: Group, means: dict[Tensor, Tensor], exchange: _Exchange, views: list[View]
    ) -> tuple[list[Tensor], Directions]:
        """Return a group's parameters that have gradients, and the function that returns their directions.

        Args:
            group: Its options and parameters.
            means: By parameter, what replaces the gradient from which its direction is made.
            exchange: Holds the states of parameters that have none yet.
            views: Flat views of the states, cached from step to step; the list is updated.
        """
        found = [(p, grad) for p in group["params"] if (grad := p.grad) is not None]
        params, grads = [p for p, _ in found], [grad for _, grad in found]
        self._check_gradients(grads)
        states = [self.state.get(p) or exchange.fresh(p) for p in params]
        if means:
            grads = [means.get(p, grad) for p, grad in found]
        prepared = prepared_spread if any(map(is_spread, grads)) else kind_of(group).prepared
        return params, prepared(group, params, grads, states, self._site, views)

    @uncompiled
    def _keep(self, exchange: _Exchange) -> None:
        """Store the new states of parameters that had none.

        It is done after the base optimizer's step, which initialises its own part where a state is empty.
        """
        for p, state in exchange.states.items():
            self.state[p].update(state)

    def _check_dense(self, groups: list[Group]) -> None:
        """Raise RuntimeError for sparse gradients in groups with alpha = 1, if the base optimizer takes none.

        That is its own error, raised here before other groups are changed.
        """
        grads = [] if self._takes_sparse else [p.grad for group in groups for p in group["params"]]
        if any(grad is not None and grad.is_sparse for grad in grads):
            raise RuntimeError(
                f"{type(self).__name__} does not support sparse gradients, as its base optimizer; make them dense, or "
                "give these parameters an optimizer that takes them, such as torch.optim.SparseAdam."
            )

    def _check_gradients(self, grads: list[Tensor]) -> None:
        name = type(self).__name__
        for grad in grads:
            if grad.layout is not torch.strided:
                raise RuntimeError(
                    f"{name} does not support sparse gradients where alpha is less than 1: each would have to be kept "
                    "with its own places; pass alpha=1 for this group, or make the gradient dense."
                )
            if is_spread(grad):
                if self.defaults["differentiable"]:
                    raise RuntimeError(
                        f"{name} does not support differentiable with gradients that are DTensors; leave it out."
                    )
            elif type(grad) is not Tensor and type(grad) is not torch.nn.Parameter:
                raise RuntimeError(
                    f"{name} does not support gradients of type {type(grad).__name__} where alpha is less than 1; pass "
                    "alpha=1 for this group, or use plain tensors or DTensors."
                )
        if not grads:
            return
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as of the base optimizer, with options that were changed as a step would take them.

        Raises:
            TypeError: One that was changed has no usable type.
            ValueError: One that was changed is out of range or unknown.
        """
        for group in self.param_groups:
            check_options(group)
        self._settle()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as of the base optimizer; where that one saved it, each group's alpha, kind and memory stay.

        A history begins anew where the base optimizer has counted steps that are not remembered in it.
        """
        loaded: dict[str, Any] = {}

        def adopt(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            loaded.update(self._adopted(given))
            return loaded

        def restore(_: torch.optim.Optimizer) -> None:
            self._restore_rows(loaded)

        handles = [  # after the hooks of others, and before them
            self.register_load_state_dict_pre_hook(adopt),
            self.register_load_state_dict_post_hook(restore, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _adopted(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a saved state_dict whose groups have all options of this optimizer's groups."""
        saved, present = state_dict["param_groups"], self.param_groups
        if len(saved) != len(present):  # the base optimizer says so
            return state_dict
        groups = [self._adopted_group(*each) for each in zip(saved, present, strict=True)]
        return {**state_dict, "param_groups": groups}

    def _adopted_group(self, saved: Group, present: Group) -> Group:
        """Return a saved group, with the present values of options that it lacks.

        A state_dict of the base optimizer lacks the options that this package adds.
        """
        own = (*self._own_defaults, "seed")
        return {**{name: present[name] for name in own if name in present}, **saved}

    def _restore_rows(self, loaded: dict[str, Any]) -> None:
        """Restore the precision of the histories after a state_dict was loaded, and drop those that missed steps.

        The base optimizer's loading casts every tensor to the parameter's dtype.

        Args:
            loaded: The state_dict, as it was before.
        """
        for saved, group in zip(loaded["param_groups"], self.param_groups, strict=True):
            for index, p in zip(saved["params"], group["params"], strict=True):
                rows = (loaded["state"].get(index) or {}).get("history")
                if rows is not None and self.state[p]["history"].dtype != rows.dtype:
                    self.state[p]["history"] = rows.to(p.device)
                if is_behind(self.state.get(p) or {}):
                    _drop(self.state[p], _KEPT)

    def _settle(self) -> None:
        """Complete the options of all groups, also after a user changed them.

        Numbers become Python's own, and groups of kind "fcgd" get a seed.
        """
        for place, group in enumerate(self.param_groups):
            group["alpha"] = float(group["alpha"])  # what is saved is read without knowing NumPy
            if not isinstance(group["memory"], str):
                group["memory"] = int(group["memory"])
            if group["kind"] == "fcgd" and "seed" not in group:
                generator = self.__dict__.get("_generator")
                group["seed"] = place if generator is None else int(torch.randint(2**62, (), generator=generator))

    def __getstate__(self) -> dict[str, Any]:
        own = {name: self.__dict__.get(name) for name in ("_own_defaults", "_generator", "_site")}
        return {**super().__getstate__(), **own}


def _drop(state: State, keys: frozenset[str]) -> None:
    for key in keys:
        state.pop(key, None)


def _is_zero(rate: Any) -> bool:
    """Whether a learning rate is 0; False for a tensor on a device, which would have to be waited for."""
    if isinstance(rate, Tensor):
        return rate.device.type == "cpu" and rate.item() == 0
    return rate == 0


class _Exchange:
    """The exchange of gradients for directions: `do` writes directions into `.grad`, `undo` puts the gradients back.

    In between the base optimizer steps.
    """

    def __init__(self) -> None:
        self.states: dict[Tensor, State] = {}
        self._directions: list[tuple[Tensor, Tensor]] = []
        self._gradients: list[tuple[Tensor, Tensor | None]] = []

    def fresh(self, p: Tensor) -> State:
        """Return a new state of a parameter."""
        return self.states.setdefault(p, {})

    def prepare(self, params: list[Tensor], directions: list[Tensor]) -> None:
        self._directions += zip(params, directions, strict=True)

    @uncompiled
    def do(self) -> None:
        for p, direction in self._directions:
            self._gradients.append((p, p.grad))
            p.grad = direction

    @uncompiled
    def undo(self) -> None:
        for p, gradient in reversed(self._gradients):  # a parameter may be there twice: its own gradient came first
            p.grad = gradient


def prepared_spread(
    group: Group,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[State],
    site: Site,
    views: list[View],
) -> Directions:
    """Return what `Kind.prepared` does, for parameters some of which are DTensors."""
    kind, grads = kind_of(group), [_as_laid(grad, p) for p, grad in zip(params, grads, strict=True)]
    if not isinstance(kind, Average):
        return kind.prepared(group, params, grads, states, site, views)
    parts: list[State] = [{key: _part(value) for key, value in state.items()} for state in states]
    make = kind.prepared(group, [*map(_part, params)], [*map(_part, grads)], parts, site, views)

    def directions() -> list[Tensor]:
        found = make()
        for p, state, part in zip(params, states, parts, strict=True):
            for key in kind.keeps:
                if key not in part:
                    state.pop(key, None)
                elif not isinstance(part[key], Tensor):
                    state[key] = part[key]
                elif _part(state.get(key)) is not part[key]:
                    state[key] = _spread(part[key], p)
        return [_spread(direction, p) for p, direction in zip(params, found, strict=True)]

    return directions


def _as_laid(grad: Tensor, p: Tensor) -> Tensor:
    """Return a gradient that lies as its parameter does, added up where it is terms of a sum."""
    if not is_spread(p) or grad.placements == p.placements:  # type: ignore[attr-defined]
        return grad
    laid: Tensor = grad.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    return laid


def _part(value: Any) -> Any:
    """Return this process's part of a DTensor, and all else as it is."""
    if not isinstance(value, Tensor) or not is_spread(value):
        return value
    with torch.no_grad():  # the part itself, not a view
        part: Any = value.to_local()  # type: ignore[attr-defined]
    return part.wait() if hasattr(type(part), "wait") else part  # of a sum that is still under way


def _spread(part: Tensor, p: Tensor) -> Tensor:
    """Return a part as a DTensor that lies as p does in its last axes, and is whole along others; or as it is."""
    if not is_spread(p):
        return part
    from torch.distributed.tensor import DTensor  # loaded, since there is such a parameter

    more = part.shape[: part.ndim - p.ndim]
    placements = [_moved(each, len(more)) for each in p.placements]  # type: ignore[attr-defined]
    strides = [p.numel() * math.prod(more[k + 1 :]) for k in range(len(more))]
    return DTensor.from_local(
        part,
        p.device_mesh,  # type: ignore[attr-defined]
        placements,
        run_check=False,
        shape=torch.Size((*more, *p.shape)),
        stride=(*strides, *p.stride()),
    )


def _moved(placement: Any, axes: int) -> Any:
    """Return a placement of a tensor that has so many axes more in front."""
    if not hasattr(placement, "dim"):
        return placement
    options = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    return type(placement)(placement.dim + axes, **options)
