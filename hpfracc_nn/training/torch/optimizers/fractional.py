"""The class that all fractional optimizers share: directions replace the gradients while the base optimizer steps.

A direction is what the base optimizer takes for the gradient, such as an average of the last gradients. A step
evaluates the closure, lets each group's kind make directions from the gradients, passes these to the base optimizer's
own step as `grad`, and puts the gradients back. So the base optimizer is torch's, with all its options and
implementations, and whoever reads `grad` before or after the step, hooks included, finds the gradients of the backward
pass. Weight decay, where the base optimizer adds it to the gradient, is added to the direction: it is not averaged.

Where alpha is 1 nothing is replaced and nothing kept: state, state_dict and results are the base optimizer's. When
alpha becomes 1 in the course of a run the history is dropped, and begins anew should alpha become less again. If a
group's kind changes, entries of the state that only the former kind keeps are dropped too.

Options and gradients are checked in all groups before anything is changed. Where a kernel or the base optimizer fails
after that, as where memory runs out, the averaged gradients stay in the history, as the base optimizer's moments do.

A first step without rate and gradient is a call by which torch's distributed checkpoints make a state to fill: the step
makes the state, and its counts stay as without a step. A loaded history that does not fit the count of steps beside it
begins anew.

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
_DROPPED = {name: _KEPT - frozenset(kind.keeps) for name, kind in KINDS.items()}  # keys that a kind does not keep

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object


class Fractional(_Base):
    """A base class that makes one of torch's optimizers fractional; list it before the torch class among the bases.

    Args:
        params: The parameters or groups, as for the base optimizer.
        options: Options of the base optimizer, in its order.
        alpha: Order, in (0, 1]; 1 is the base optimizer. Each group may have its own alpha, which may change.
        kind: What takes the gradient's place; a key of `KINDS`.
        memory: How many gradients are averaged, that of the step included, or "exponentials".
        generator: The generator of the seeds of groups of kind "fcgd", drawn when a group is added. A group's random
            numbers follow from its seed and the number of steps, both in `state_dict`. With None the place of the group
            is its seed: the same numbers in every run, and in every process, without which replicas would differ.
        manager: The manager that chooses the kernel; None is the process-wide BackendManager.
        named: Options of the base optimizer by name.
    """

    _takes_sparse = False  # whether the base optimizer takes sparse gradients, where alpha is 1

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
        """Add a group, as the base optimizer does; alpha, kind and memory missing in the group are the defaults.

        Raises:
            TypeError: alpha, kind or memory has no usable type.
            ValueError: alpha, kind or memory is out of range or unknown.
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
            closure: Evaluates the loss anew and returns it. Kind "caputo_terminal" needs a closure, which must clear
                the gradients itself, and is called at other points first.

        Raises:
            RuntimeError: A gradient cannot be averaged, because it is sparse, a tensor's subclass, or still scaled; the
                state is that of another memory or parameter; or kind "caputo_terminal" has no closure.
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
        if getattr(step, "hooked", False):  # as soon as an optimizer of the base class was made in this process
            step = step.__func__.__wrapped__.__get__(self)
        step()

    @uncompiled
    def _only_makes_states(self) -> bool:
        """Return whether torch's distributed checkpoints call this step only to make states.

        Such a step is the first one, with learning rates and gradients of 0.
        """
        if self.state or not all(_is_zero(group["lr"]) for group in self.param_groups):
            return False
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        return all(grad.layout is torch.strided and not grad.any() for grad in grads)

    @uncompiled
    def _rewind(self) -> None:
        """Set the counts in the states of all parameters as if no step had been taken."""
        for group in self.param_groups:
            for p in group["params"]:
                kind_of(group).rewind(self.state.get(p) or {})

    @uncompiled
    def _prepared(self, closure: Callable[[], Any] | None, makes_states: bool) -> dict[Tensor, Tensor]:
        """Check all options; return for kind "caputo_terminal" each parameter's mean gradient on the line from 0.

        The result is {} for other kinds, and if the step only makes states (`makes_states`).
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
            means: By parameter, the mean gradient from which its direction is made, in place of the gradient; or {}.
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
            group: The group's options and parameters.
            means: By parameter, the mean gradient from which its direction is made, in place of the gradient; or {}.
            exchange: The exchange that holds new states of parameters without one.
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

        This is done after the base optimizer's step, which initialises its own part of a state that is empty.
        """
        for p, state in exchange.states.items():
            self.state[p].update(state)

    def _check_dense(self, groups: list[Group]) -> None:
        """Raise RuntimeError for sparse gradients in these groups, with alpha = 1, if the base optimizer takes none.

        The base optimizer would raise an error itself, but after other groups were changed.
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
        """Whether a GradScaler may leave the gradients scaled.

        The base optimizer decides if no group keeps a history; otherwise the answer is no.
        """
        return self.__dict__.get("_base_supports_amp_scaling", False) and all(
            is_identity(group) for group in self.param_groups
        )

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, supports: bool) -> None:
        self._base_supports_amp_scaling = supports

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as the base optimizer does, with options that a user changed as a step would take them.

        Raises:
            TypeError: A changed option has no usable type.
            ValueError: A changed option is out of range or unknown.
        """
        for group in self.param_groups:
            check_options(group)
        self._settle()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as the base optimizer does; from a state that the base optimizer itself saved, too.

        Such a state has no alpha, kind and memory: those of each group stay. A history begins anew if the base
        optimizer has counted steps that are not in the history.
        """
        loaded: dict[str, Any] = {}

        def adopt(_: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
            loaded.update(self._adopted(given))
            return loaded

        def restore(_: torch.optim.Optimizer) -> None:
            self._restore_rows(loaded)

        handles = [  # `adopt` runs after other pre-hooks, `restore` before other post-hooks
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
        if len(saved) != len(present):  # the base optimizer raises an error for this
            return state_dict
        groups = [self._adopted_group(*each) for each in zip(saved, present, strict=True)]
        return {**state_dict, "param_groups": groups}

    def _adopted_group(self, saved: Group, present: Group) -> Group:
        """Return a saved group, with the present group's values of options that the saved one lacks.

        A state_dict of the base optimizer lacks the options that this package adds.
        """
        own = (*self._own_defaults, "seed")
        return {**{name: present[name] for name in own if name in present}, **saved}

    def _restore_rows(self, loaded: dict[str, Any]) -> None:
        """Restore the precision of the histories after a state_dict was loaded, and drop those that missed steps.

        The base optimizer's loading casts every tensor to the parameter's dtype.

        Args:
            loaded: The state_dict that was loaded, before the base optimizer cast its tensors.
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
            group["alpha"] = float(group["alpha"])  # so that a saved state holds no numbers of NumPy
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
    """Return whether a learning rate is 0; False for a tensor on a device, whose value would have to be waited for."""
    if isinstance(rate, Tensor):
        return rate.device.type == "cpu" and rate.item() == 0
    return rate == 0


class _Exchange:
    """The exchange of gradients for directions: `do` writes directions into `.grad`, `undo` puts the gradients back.

    Between `do` and `undo` the base optimizer takes its step.
    """

    def __init__(self) -> None:
        self.states: dict[Tensor, State] = {}
        self._directions: list[tuple[Tensor, Tensor]] = []
        self._gradients: list[tuple[Tensor, Tensor | None]] = []

    def fresh(self, p: Tensor) -> State:
        """Return the new state of a parameter that has none yet, a dict to be filled; it is kept in `states`."""
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
        for p, gradient in reversed(self._gradients):  # of a parameter that is there twice, the first is its gradient
            p.grad = gradient


def prepared_spread(
    group: Group,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[State],
    site: Site,
    views: list[View],
) -> Directions:
    """Return the function that makes directions, as `Average.prepared` does, for parameters some of which are DTensors.

    Averages are formed of each process's own parts; other kinds use torch's operations on DTensors.
    """
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
    """Return a gradient with the placements of its parameter; partial gradients are summed over the processes."""
    if not is_spread(p) or grad.placements == p.placements:  # type: ignore[attr-defined]
        return grad
    laid: Tensor = grad.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    return laid


def _part(value: Any) -> Any:
    """Return this process's part of a DTensor; any other value is returned as it is."""
    if not isinstance(value, Tensor) or not is_spread(value):
        return value
    with torch.no_grad():  # the part itself, not a view
        part: Any = value.to_local()  # type: ignore[attr-defined]
    return part.wait() if hasattr(type(part), "wait") else part  # an asynchronous result of a collective operation


def _spread(part: Tensor, p: Tensor) -> Tensor:
    """Return this process's part as a DTensor with the placements of p, whole along axes in front of those of p.

    If p is no DTensor the part is returned as it is.
    """
    if not is_spread(p):
        return part
    from torch.distributed.tensor import DTensor  # loaded already, because p is a DTensor

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
    """Return the placement for a tensor with `axes` more axes in front: a sharded axis moves by as many."""
    if not hasattr(placement, "dim"):
        return placement
    options = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    return type(placement)(placement.dim + axes, **options)
