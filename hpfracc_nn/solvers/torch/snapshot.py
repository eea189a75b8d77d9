"""A snapshot of what a right-hand side f reads, put back while the adjoint evaluates f again.

Attributes of modules and objects, entries of containers, cells of closures and module-level variables are put back by
identity, and are restored afterwards. Numbers that were written into a tensor cannot be put back: the backward pass
then raises an error.

A right-hand side is evaluated twice at the start, to see whether that is allowed: f must return the same and change
nothing. Detected are random numbers of torch's own generators, a result that differs, and tensors that f changes in
place from one evaluation to the next, wherever f holds them. What f does at later steps is detected by its results, see
`adjoint.check_repeated`.

A restorer is a function that puts one object back as it was when the restorer was made, and returns a function that
undoes this. `read` are the ids of the tensors that f reads.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hpfracc_nn.solvers.torch.state import MOVED, Field, Signature, evaluated, size

_EMPTY = CellType()
FEW = 1000  # most entries of a container that is searched
OWN = frozenset(vars(nn.Module()))  # attributes that torch itself gives to a module
PLAIN = frozenset({int, float, bool, str, type(None)})  # types of values that hold no others
_LOOKED_AT = (Tensor, nn.Module, tuple, list, dict)


def held(f: Any, is_deep: bool = False) -> list[Any]:
    """Return all that f holds, each once: functions, containers, objects, modules and tensors.

    Searched are functions of f's own file and closures, containers of up to `FEW` entries, the attributes of f, of an
    object whose method is bound, and of a partial's arguments, and of a module the tensors, modules and containers
    among its attributes. With `is_deep`, the attributes of all values that f holds are searched too.
    """
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(f, True)]
    while waiting:
        one, is_called = waiting.pop()
        if id(one) in seen or type(one) in PLAIN:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, nn.Module):
            found.append(one)
            # With `is_deep`, all attributes, torch's tables too; else the module's own and those of its submodules.
            values = vars(one).values() if is_deep else _plain_attributes(one)
            waiting += [(each, is_deep) for each in values]
        elif isinstance(one, partial):
            waiting += [(each, True) for each in (one.func, *one.args, *one.keywords.values())]
        elif isinstance(one, MethodType):
            waiting += [(one.__self__, True), (one.__func__, True)]
        elif isinstance(one, FunctionType):
            found.append(one)
            waiting += [(each, False) for each in _named(one)]
        elif isinstance(one, tuple | list | dict):
            if len(one) <= FEW:
                found.append(one)
                waiting += [(each, is_deep) for each in (one.values() if isinstance(one, dict) else one)]
        elif is_called and not isinstance(one, type | ModuleType):
            found.append(one)
            waiting += [(each, is_deep) for each in _attributes(one)]
    return found


def modules_of(f: Any) -> list[nn.Module]:
    """Return the modules that f holds: f itself, the object of a bound method, or what f reads; see `held`."""
    return [each for each in held(f) if isinstance(each, nn.Module)]


def tensors_within(value: Any) -> list[Tensor]:
    """Return all tensors in a value: itself, and those in its attributes, containers and modules, at any depth."""
    found: list[Tensor] = []
    for each in held(value, is_deep=True):
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, nn.Module):
            found += [*each.parameters(), *each.buffers()]
    return found


def _plain_attributes(module: nn.Module) -> Iterator[Any]:
    """Yield the tensors, modules and containers that are plain attributes of a module or of its submodules."""
    for each in module.modules():
        for value in own_attributes(each):
            if isinstance(value, _LOOKED_AT):
                yield value


def own_attributes(module: nn.Module) -> list[Any]:
    """Return the values of a module's attributes, without those that torch defines and without numbers and strings."""
    return [each for name, each in vars(module).items() if name not in OWN and type(each) not in PLAIN]


def _attributes(one: Any) -> Iterator[Any]:
    """Yield the values of an object's own attributes, those in a dataclass's slots too."""
    yield from vars(one).values() if hasattr(one, "__dict__") else ()
    if dataclasses.is_dataclass(one):
        yield from (getattr(one, each.name, None) for each in dataclasses.fields(one))


def _names_of(f: FunctionType) -> list[str]:
    """Return the names of module-level variables that a function reads."""
    return [name for name in f.__code__.co_names if name in f.__globals__]


def _cells_of(f: FunctionType) -> list[CellType]:
    """Return the cells of a function's closure that are not empty."""
    return [cell for cell in f.__closure__ or () if cell != _EMPTY]


def _named(f: FunctionType) -> list[Any]:
    """Return what a function can reach by name: the values of its closure, its defaults, and module-level variables.

    Functions of other files are left out.
    """
    found = [cell.cell_contents for cell in _cells_of(f)] if f.__closure__ else []
    found += [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
    for name in _names_of(f):
        each = f.__globals__[name]
        if not isinstance(each, FunctionType) or each.__globals__ is f.__globals__:
            found.append(each)
    return found


_TABLES = (dict, OrderedDict, defaultdict)
_TORCHS = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))
_WITHOUT = (nn.Module, ModuleType, FunctionType, type)  # are not searched for tensors with a graph
_GONE = object()  # stands for a variable that was deleted
_DEPTH = 3  # levels of nested values that are searched for tensors with a graph

Undo = Callable[[], None]


class Snapshot:
    """What functions hold at the time of the snapshot, to be put back when they are evaluated again.

    Args:
        functions: The functions, such as a right-hand side.
        read: The tensors that the functions read.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], read: Sequence[Tensor]):
        self._versions = [(each, each._version) for each in read]
        known = {id(each) for each in read}
        self._places: list[Callable[[], Undo]] = []
        for f in functions:
            self._places += _places(f, known)

    @contextmanager
    def renewed(self, wanted: Sequence[Tensor] = ()) -> Iterator[None]:
        """Put back, inside this context, what the functions held at the time of the snapshot.

        Afterwards they hold what they held before the context; what they stored inside is dropped.

        Args:
            wanted: Tensors whose gradients are taken inside. They required a gradient at the time of the snapshot, and
                are made to require one again.

        Raises:
            RuntimeError: A tensor that the functions read was written to since the snapshot.
        """
        self._check()
        frozen = [each for each in wanted if not each.requires_grad]
        undo: list[Undo] = []
        try:
            for place in self._places:
                undo.append(place())
            for each in frozen:
                each.requires_grad_(True)
            yield
            self._versions = [(each, each._version) for each, _ in self._versions]  # f itself may have written
        finally:
            for each in frozen:
                each.requires_grad_(False)
            for one in reversed(undo):
                one()

    def _check(self) -> None:
        for each, version in self._versions:
            if each._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"a tensor of shape {tuple(each.shape)} that a right-hand side reads is at version "
                    f"{each._version}; expected version {version} instead; clone it before it is changed, or change "
                    "it after the backward pass."
                )


def _places(f: Any, read: set[int]) -> list[Callable[[], Undo]]:
    """Return the restorers of all that f holds: attributes, container entries, closures, module-level variables."""
    places: list[Callable[[], Undo]] = []
    for one in held(f):
        if isinstance(one, nn.Module):
            for each in one.modules():
                if isinstance(each, torch.jit.ScriptModule):  # whose attributes are no Python attributes
                    places.append(_scripted(each))
                else:
                    places += _of_module(each, read)
        elif isinstance(one, FunctionType):
            if one.__closure__:
                places += [_cell(cell) for cell in _cells_of(one) if not _is_loose(cell.cell_contents, read)]
            places.append(_names(one, read))
        elif isinstance(one, Tensor | tuple):
            continue
        elif isinstance(one, list | dict):
            places += _of_container(one, read)
        elif hasattr(one, "__dict__"):
            places += _of_attributes(vars(one), read)
    return places


def _of_module(module: nn.Module, read: set[int]) -> list[Callable[[], Undo]]:
    attributes = vars(module)
    places = [_tables([attributes[name] for name in _TORCHS if name in attributes]), _table(attributes, read)]
    for each in own_attributes(module):
        if isinstance(each, list | dict) and len(each) <= FEW:
            places += _of_container(each, read)
    return places


def _of_attributes(attributes: dict[str, Any], read: set[int]) -> list[Callable[[], Undo]]:
    places = [_table(attributes, read)]
    for each in attributes.values():
        if isinstance(each, list | dict) and len(each) <= FEW:
            places += _of_container(each, read)
    return places


def _of_container(container: list[Any] | dict[Any, Any], read: set[int]) -> list[Callable[[], Undo]]:
    if _is_loose(container, read):  # keeping it would keep the graphs in it
        return []
    if type(container) in _TABLES:
        return [_table(container, read)]  # type: ignore[arg-type]
    return [_list(container)] if type(container) is list else []


def _scripted(module: torch.jit.ScriptModule) -> Callable[[], Undo]:
    """Return the restorer of the parameters, the buffers and the training flag of a scripted module."""

    def held() -> list[tuple[Any, str, Tensor]]:
        tables: tuple[Any, ...] = (module._parameters, module._buffers)
        return [(table, name, tensor) for table in tables for name, tensor in table.items()]

    before, was_training = held(), module.training

    def put_back() -> Undo:
        now, trains = held(), module.training
        changed = [new for new, old in zip(now, before, strict=True) if new[2] is not old[2]]

        def fill(values: list[tuple[Any, str, Tensor]], training: bool) -> None:
            for table, name, tensor in values if changed else ():
                table[name] = tensor
            if module.training != training:
                module.training = training

        fill(before, was_training)
        return lambda: fill(now, trains)

    return put_back


def _tables(tables: Sequence[dict[str, Any]]) -> Callable[[], Undo]:
    """Return the restorer of a module's dicts of parameters, buffers, submodules and hooks, most of which are empty."""
    filled = [(table, dict(table)) for table in tables if table]
    empty = [table for table in tables if not table]

    def put_back() -> Undo:
        begun: list[tuple[dict[str, Any], dict[str, Any]]] = [(table, {}) for table in empty if table]
        now = [(table, dict(table)) for table, _ in (*filled, *begun)]

        def undo() -> None:
            for table, values in now:
                _fill(table, values)
            for table in empty:
                if table and all(table is not each for each, _ in begun):
                    table.clear()

        for table, values in (*filled, *begun):
            _fill(table, values)
        return undo

    return put_back


def _table(table: dict[Any, Any], read: set[int]) -> Callable[[], Undo]:
    loose = {name for name, value in table.items() if name not in OWN and _is_loose(value, read)}
    before = {name: value for name, value in table.items() if name not in loose} if loose else dict(table)

    def put_back() -> Undo:
        now = dict(table)
        _fill(table, {**before, **{name: now[name] for name in loose if name in now}} if loose else before)
        return lambda: _fill(table, now)

    return put_back


def _fill(table: dict[Any, Any], values: dict[Any, Any]) -> None:
    """Make a dict hold the entries of `values` in their order; a dict that does so already is not written to."""
    if list(table) != list(values):
        table.clear()
        table.update(values)
    elif not all(map(is_, table.values(), values.values())):
        table.update(values)


def _list(entries: list[Any]) -> Callable[[], Undo]:
    before = list(entries)

    def fill(values: list[Any]) -> None:
        if len(entries) != len(values) or not all(map(is_, entries, values)):
            entries[:] = values

    def put_back() -> Undo:
        now = list(entries)
        fill(before)
        return lambda: fill(now)

    return put_back


def _cell(cell: CellType) -> Callable[[], Undo]:
    """Return the restorer of a variable of a closure.

    A variable that has its old value when it is put back is not reset afterwards: it keeps what f assigns meanwhile.
    """
    before = cell.cell_contents

    def put_back() -> Undo:
        if cell == CellType():  # the name has been deleted

            def empty() -> None:
                del cell.cell_contents

            cell.cell_contents = before
            return empty
        now = cell.cell_contents

        def undo() -> None:
            if now is not before:
                cell.cell_contents = now

        if now is not before:
            cell.cell_contents = before
        return undo

    return put_back


def _names(f: FunctionType, read: set[int]) -> Callable[[], Undo]:
    """Return the restorer of the module-level variables that a function reads, and of no others."""
    table = f.__globals__
    before = {name: table[name] for name in _names_of(f) if not _is_loose(table[name], read)}

    def put_back() -> Undo:
        changed = [name for name, value in before.items() if table.get(name, _GONE) is not value]
        now = {name: table[name] for name in changed if name in table}
        table.update({name: before[name] for name in changed})

        def undo() -> None:
            table.update(now)
            for name in changed:
                if name not in now:
                    del table[name]

        return undo

    return put_back


def _is_loose(value: Any, read: set[int], depth: int = _DEPTH) -> bool:
    """Return whether a value holds a tensor with a graph that f does not read, such as the result of an earlier step.

    To keep such a value would keep the graphs of all steps before. Containers and attributes are searched down to
    `depth` levels.
    """
    if depth == 0 or type(value) in PLAIN:
        return False
    if isinstance(value, Tensor):
        return value.grad_fn is not None and id(value) not in read
    if isinstance(value, _WITHOUT):
        return False
    if isinstance(value, tuple | list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return len(value) <= FEW and any(_is_loose(each, read, depth - 1) for each in parts)
    return any(_is_loose(each, read, depth - 1) for each in getattr(value, "__dict__", {}).values())


def evaluated_twice(field: Field, z0: Tensor) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Evaluate f twice at the start, to see whether the adjoint may evaluate it again.

    Returns:
        The state at the start as a leaf, f at this state with its graph, the other tensors that f reads, and the
        tensors that f's operations create.

    Raises:
        ValueError: f draws random numbers, changes a tensor that it holds, or returns something else the second time.
    """
    random, watch = _generators(z0), _Watch()
    with watch:
        z, value = evaluated(field, 0, z0)
    if not all(map(torch.equal, random, _generators(z0))):
        raise ValueError(
            f"{field.label}: draws random numbers, as dropout does while training; the adjoint evaluates f again and "
            "would get others; call eval() on the module, as f.eval(), or pass adjoint=False."
        )
    changed = [(each, each.detach().clone()) for each in watch.changed()]
    with torch.no_grad():
        again = field(0, z0.detach()).detach()
    for each, once in changed:
        if not torch.equal(each, once):
            raise ValueError(
                f"{field.label}: changes {_name_of(each, field.f)}, as batch normalisation does while training; the "
                "adjoint evaluates f again and would change it twice; call eval() on the module, as f.eval(), or pass "
                "adjoint=False."
            )
    # Rounding may differ: a device may add up in any order, and another routine may run without a gradient.
    apart, signature = again - value.detach(), Signature()
    if size(apart) > field.eps**0.5 * max(size(again), size(value.detach())) and not bool(
        signature.sums(apart[None]).abs() <= MOVED * field.eps * signature.moved(z, value)
    ):
        raise ValueError(
            f"{field.label}: returns something else when it is evaluated again for the same t and y; the adjoint "
            "does so; let f depend on its arguments and on what stays as it is, or pass adjoint=False."
        )
    return z, value, [each for each in watch.unchanged() if each is not z], watch.made()


# Functions that write statistics into their arguments without increasing the version of these tensors.
_SILENT = (functional.batch_norm, functional.instance_norm, torch.batch_norm, torch.instance_norm)


class _Watch(TorchFunctionMode):
    """A torch function mode that records which tensors the operations inside take and create.

    Tensors that existed before are kept with their version, which increases when they are written to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._silent: list[Tensor] = []
        self._before: dict[int, tuple[Tensor, int]] = {}
        self._made: dict[int, Tensor] = {}  # by id; kept alive, so that no id is used twice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before, made = self._before, self._made
        values = (*args, *kwargs.values()) if kwargs else args
        tensors = [each for each in values if isinstance(each, Tensor)]
        nested = [each for each in values if isinstance(each, tuple | list) and each]
        for each in tensors + _tensors(nested) if nested else tensors:
            if id(each) not in made and id(each) not in before and not each.is_inference():
                before[id(each)] = each, each._version
        if func in _SILENT:
            self._silent += [each for each in tensors if not each.requires_grad]  # none of them takes a tuple
        found = func(*args, **kwargs)
        results = (found,) if isinstance(found, Tensor) else found if isinstance(found, tuple | list) else ()
        for each in _tensors(results) if results else ():
            if id(each) not in before:
                made[id(each)] = each
        return found

    def changed(self) -> list[Tensor]:
        """Return the tensors that existed before and that operations have written to, or may have."""
        return [each for each, version in self._before.values() if each._version != version] + self._silent

    def made(self) -> list[Tensor]:
        """Return the tensors that the operations have created."""
        return list(self._made.values())

    def unchanged(self) -> list[Tensor]:
        """Return the tensors that existed before, and that operations have taken but not written to."""
        return [each for each, version in self._before.values() if each._version == version]


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, tuple | list):
            found += _tensors(each)
    return found


def _generators(like: Tensor) -> list[Tensor]:
    """Return the states of torch's default generators on the CPU and, if `like` is a CUDA tensor, on its device."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(like.device)] if like.is_cuda else states


def _name_of(changed: Tensor, f: Any) -> str:
    for module in modules_of(f):
        for name, buffer in module.named_buffers():
            if buffer is changed:
                return f"its buffer {name!r}"
    return f"a tensor of shape {tuple(changed.shape)} that it holds"
