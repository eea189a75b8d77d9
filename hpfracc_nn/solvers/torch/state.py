"""States, times and right-hand sides as the solvers see them: layouts, checks, autocast, and messages of a step.

Steps work with one tensor: the user's own, or the parts of a tuple joined into a vector. The history works with [a, r]:
a orders alpha, and r numbers that share each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.tracing import PLAIN, is_batched, is_watched, unpacked
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.checks import fitting_orders, singular

State = Tensor | tuple[Tensor, ...]
S = TypeVar("S", Tensor, tuple[Tensor, ...])  # of what kind the user's state is


@dataclass(frozen=True)
class Layout:
    """A layout.

    Attributes:
        shapes: Of each tensor of the user's tuple, or of the one tensor.
        is_tuple: Whether the user has a tuple.
        varying: The sizes of alpha's axes, as many as the state has: 1 where it does not vary.
        shape: Of the states that steps work with.
        orders: a.
        width: r.
    """

    shapes: tuple[torch.Size, ...]
    is_tuple: bool
    varying: tuple[int, ...]
    shape: torch.Size = field(init=False)
    orders: int = field(init=False)
    width: int = field(init=False)
    _order: list[int] | None = field(init=False)
    _back: list[int] = field(init=False)

    def __post_init__(self) -> None:
        axes = range(len(self.varying))
        order = [axis for axis in axes if self.varying[axis] > 1] + [axis for axis in axes if self.varying[axis] == 1]
        back = [order.index(axis) for axis in axes]
        numbers = sum(shape.numel() for shape in self.shapes)
        shape = torch.Size([numbers]) if self.is_tuple else self.shapes[0]
        orders = math.prod(self.varying)
        for name, value in (("shape", shape), ("orders", orders), ("width", numbers // orders)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_order", None if order == list(axes) else order)
        object.__setattr__(self, "_back", back)

    def ravel(self, y: State) -> Tensor:
        """Return the user's state as one tensor."""
        if isinstance(y, Tensor):
            return y
        return torch.cat([part.reshape(-1) for part in y])

    def unravel(self, z: Tensor) -> State:
        """Return states [*time, *shape] as the user's."""
        if not self.is_tuple:
            return z
        parts = z.split([shape.numel() for shape in self.shapes], dim=-1)
        return tuple(part.reshape((*z.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True))

    def as_matrix(self, z: Tensor) -> Tensor:
        """Return states [time, *shape] as [a, time, r]."""
        if self._order is not None:
            z = z.permute(0, *(axis + 1 for axis in self._order))
        return z.reshape(z.shape[0], self.orders, self.width).transpose(0, 1)

    def as_state(self, x: Tensor) -> Tensor:
        """Return a view of x, [a, *time, r], as [*time, *shape]."""
        time = x.shape[1:-1]  # it and shape may both be empty, and view() takes no arguments but a tuple of none
        if self.orders == 1:
            return x.view((*time, *self.shape))
        moved = x.movedim(0, -2)
        if self._order is None:
            return moved.view((*time, *self.shape))
        split = moved.view((*time, *(self.shape[axis] for axis in self._order)))
        return split.permute(*range(len(time)), *(axis + len(time) for axis in self._back))

    def broadcast(self, values: Tensor) -> Tensor:
        """Return one number for each order, [a], in a shape that broadcasts to that of a state."""
        return values.view(self.varying)


def layout_of(y0: State, alpha_shape: torch.Size, owner: str = "fdeint") -> Layout:
    """Return the layout of states like `y0` under an alpha of that shape.

    Raises:
        ValueError: alpha is not one number and y0 is a tuple, or alpha does not broadcast to y0.
    """
    if isinstance(y0, tuple):
        varying = fitting_orders(owner, tuple(alpha_shape), None, "a tuple of tensors")
        return Layout(tuple(part.shape for part in y0), True, varying)
    shape = y0.shape
    is_known = set(map(type, shape)) <= {int}  # a tracer's sizes have no hash
    return (_layout if is_known else _layout.__wrapped__)(shape, alpha_shape, owner)


@lru_cache(maxsize=256)
def _layout(shape: torch.Size, alpha_shape: torch.Size, owner: str) -> Layout:
    return Layout((shape,), False, fitting_orders(owner, tuple(alpha_shape), tuple(shape)))


def bare(x: Tensor) -> Tensor:
    """Return the tensor that holds the numbers: under vmap with the axes of the batch, in whatever place."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return x.detach()


def is_shared(x: Tensor) -> bool:
    """Whether all of a batch have the same numbers: no vmap has a batch of `x`."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return False
        x = functorch.get_unwrapped(x)
    return True


def is_finite(x: Tensor) -> bool:
    """Whether all numbers are finite; a tracer's tensors have no numbers and pass."""
    plain = bare(x)
    return is_watched(plain) or bool(torch.isfinite(plain.sum())) or bool(torch.isfinite(plain).all())


_KINDS = ("cpu", "cuda", "mps", "xpu", "xla", "hpu", "mtia")


@dataclass(frozen=True)
class Casts:
    """An autocast.

    Attributes:
        dtypes: By the type of device.
        keeps: Whether it keeps the narrow copy of a parameter for further uses.
    """

    dtypes: tuple[tuple[str, torch.dtype], ...]
    keeps: bool

    def eps(self, dtype: torch.dtype, kind: str) -> float:
        """Return the rounding of what is computed of tensors of a dtype on a type of device."""
        return torch.finfo(dict(self.dtypes).get(kind, dtype)).eps

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Let it be on.

        With a graph no copies are kept: gradients of one that serves many steps would be added up in its own dtype.
        """
        keeps = self.keeps and not torch.is_grad_enabled()
        with ExitStack() as stack:
            for kind, dtype in self.dtypes:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=keeps))
            yield


def present(kind: str) -> Casts | None:
    """Return the autocast that is on, or None.

    Args:
        kind: The states' type of device.
    """
    if not torch._C._is_any_autocast_enabled() and not torch.is_autocast_enabled(kind):
        return None
    dtypes = tuple((each, torch.get_autocast_dtype(each)) for each in _enabled(kind))
    return Casts(dtypes, torch.is_autocast_cache_enabled())


@contextmanager
def without(kind: str) -> Iterator[None]:
    """Let none be on.

    Args:
        kind: The states' type of device.
    """
    with ExitStack() as stack:
        for each in _enabled(kind):
            stack.enter_context(torch.autocast(each, enabled=False))
        yield


def _enabled(kind: str) -> list[str]:
    return [each for each in dict.fromkeys((kind, *_KINDS)) if torch.is_autocast_enabled(each)]


_DTYPES = (torch.float32, torch.float64)


def checked_state(owner: str, name: str, y: Any) -> State:
    """Return a state, lists of tensors as tuples.

    Raises:
        TypeError: It is no tensor and no tuple of such, or of a dtype or on a device that does not fit.
        ValueError: It holds no numbers, or one that is not finite.
    """
    parts = tuple(y) if isinstance(y, tuple | list) else (y,)
    if not parts:
        raise ValueError(f"{owner}({name}=()): needs a tensor, or some of them; pass the state at the start.")
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(
                f"{owner}({name} of type {type(part).__name__}): needs a tensor, or a tuple of tensors; pass "
                f"torch.as_tensor({name})."
            )
        if type(part) not in PLAIN or part.is_nested or part.layout is not torch.strided:
            check_dense(owner, name, part)
        if part.dtype not in _DTYPES:
            raise checks.wrong_dtype(owner, name, part.dtype, part.is_complex(), "to(torch.float32)")
        if part.dtype != parts[0].dtype or part.device != parts[0].device:
            raise TypeError(
                f"{owner}({name}): needs tensors of one dtype and device; they are {parts[0].dtype} on "
                f"{parts[0].device} and {part.dtype} on {part.device}; convert them with .to(...)."
            )
        if part.numel() == 0:
            raise ValueError(
                f"{owner}({name} of shape {tuple(part.shape)}): needs numbers; pass a state that has some."
            )
        if not is_finite(part):
            raise ValueError(f"{owner}({name}): needs finite numbers; {name} holds {_wrong_number(part)}.")
    return parts if isinstance(y, tuple | list) else parts[0]


def like_start(y0: State, dy0: State) -> State:
    """Return dy0, or raise where its shape is not that of y0."""
    shapes = [tuple(part.shape) for part in (y0 if isinstance(y0, tuple) else (y0,))]
    given = [tuple(part.shape) for part in (dy0 if isinstance(dy0, tuple) else (dy0,))]
    if shapes != given or isinstance(y0, tuple) != isinstance(dy0, tuple):
        raise checks.slope_shape("fdeint", given, shapes)
    return dy0


def _wrong_number(x: Tensor) -> str:
    """Return the first number of x that is not finite, with its position if known, as text for an error message."""
    plain = bare(x).reshape(-1)
    i = int(torch.isfinite(plain).logical_not().nonzero()[0])
    where = f" at place {i} of {plain.numel()}" if is_shared(x) else " in a batch"
    return f"{plain[i].item()}{where}; replace it, or leave what it belongs to out"


def orders_of(owner: str, alpha: Any) -> np.ndarray:
    """Return the values of alpha, [a].

    Raises:
        TypeError: It is neither a number nor a floating tensor.
        ValueError: It differs within a batch of `torch.func.vmap`.
    """
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"{owner}(alpha of dtype {alpha.dtype}): needs a floating tensor; pass alpha.double().")
        return _values(owner, "alpha", alpha).reshape(-1)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.floating):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a floating tensor; pass for example 0.5."
        )
    return np.array([float(alpha)])


def times_of(owner: str, ts: Any) -> Any:
    """Return the output times without their framework.

    Raises:
        ValueError: They want a gradient, or differ within a batch of `torch.func.vmap`.
    """
    if not isinstance(ts, Tensor):
        return ts
    if ts.requires_grad or unpacked(ts)[1] is not None:
        raise ValueError(
            f"{owner}(ts that require a gradient): needs times that are given, because the mesh is made of them; pass "
            "ts.detach()."
        )
    return _values(owner, "ts", ts)


def _values(owner: str, name: str, x: Tensor) -> np.ndarray:
    """Return the numbers of a tensor, also inside a transform of torch.func.

    There the results of operations have no numbers that can be read. `owner` and `name` are the function and its
    argument, for the error message.
    """
    if not is_shared(x):
        raise ValueError(
            f"{owner}({name}): needs the same {name} throughout torch.func.vmap; pass an alpha for each entry of y0, "
            f"or call {owner} once for each."
        )
    return np.array(bare(x).tolist(), dtype=np.float64)


def resolution(ts: Any) -> float:
    """Return the relative precision that times were given in."""
    if isinstance(ts, Tensor) and ts.is_floating_point():
        return torch.finfo(ts.dtype).eps
    if isinstance(ts, np.ndarray) and ts.dtype.kind == "f":
        return float(np.finfo(ts.dtype).eps)
    return float(np.finfo(np.float64).eps)


def order_numbers(owner: str, alpha: Any) -> np.ndarray:
    """Return the orders that a module is given as numbers, float64.

    Raises:
        TypeError: It is given a tensor, which it would not learn.
    """
    if isinstance(alpha, Tensor):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; pass learn_alpha=True "
            "to train it, an Alpha that several layers share, or use the function for an alpha that you compute."
        )
    values = errors.as_numbers(alpha)
    if values is None or not values.size:
        raise TypeError(
            f"{owner}(alpha={alpha!r}): needs a real number, or one for each entry of the state; pass for example "
            "alpha=0.5."
        )
    return values


NAMES = {torch.float32: "float32", torch.float64: "float64"}  # of dtypes that are solved in

_TIMES = 1024  # are tensors of their own together

RightHandSide = Callable[[Tensor, Any], State]


class Field:
    """f(t_n, z) for states as steps work with them.

    Args:
        f: The user's function or module.
        layout: How its states are laid out.
        times: The mesh, [n + 1].
        like: A tensor of the states' dtype and device.
        casts: The autocast that f runs under, or None.
        owner: The function or class that solves, for error messages.
        argument: The name of its argument that f is.
        shape: Of what f returns; None is a state's.

    Attributes:
        eps: The precision of the dtype that f is computed in.
        makes_leaves: Whether f is known to make tensors that require a gradient by themselves.
    """

    makes_leaves = False

    def __init__(
        self,
        f: RightHandSide,
        layout: Layout,
        times: np.ndarray,
        like: Tensor,
        casts: Casts | None = None,
        owner: str = "fdeint",
        argument: str = "f",
        shape: torch.Size | None = None,
    ):
        self.f, self.layout, self.argument = f, layout, argument
        self.label = f"{owner}({argument})"
        self.dtype, self.begin = like.dtype, float(times[0])
        self.times = torch.as_tensor(times).to(device=like.device, dtype=like.dtype)
        self._shape, self._is_tuple = layout.shape if shape is None else shape, layout.is_tuple
        self._whose = "the state's" if shape is None else "its first"
        self._part = -1  # which of the times are tensors of their own
        self._each: Sequence[Tensor] = ()
        self._casts = casts
        self.eps = torch.finfo(like.dtype).eps if casts is None else casts.eps(like.dtype, like.device.type)
        self._run = f if casts is None else self._autocast

    def __call__(self, n: int, z: Tensor) -> Tensor:
        """Return the right-hand side at step n, of the shape of z."""
        part = n // _TIMES
        if part != self._part:
            is_first, self._part = self._part < 0, part
            self._each = self.times[part * _TIMES : (part + 1) * _TIMES].unbind()
            if is_first:
                return self._first(n, z)
        t = self._each[n % _TIMES]
        if not self._is_tuple:  # the usual case, without a call more at each step
            found = self._run(t, z)
            if isinstance(found, Tensor) and found.shape == self._shape and found.dtype == self.dtype:
                return found
        return self.checked(n, t, z)

    def checked(self, n: int, t: Tensor, z: Tensor) -> Tensor:
        """Return the right-hand side at a time of step n, of the shape of z, or raise where it is something else."""
        if self._is_tuple:
            return self._of_tuple(n, t, z)
        found = self._run(t, z)
        if not isinstance(found, Tensor) or found.shape != self._shape or found.dtype != self.dtype:
            raise self._wrong(n, t, "", found, self._shape)
        return found

    def _first(self, n: int, z: Tensor) -> Tensor:
        """Return f(t_n, z) for the first call; raise if f writes to z, or has no finite value at the start."""
        kept, version = z.detach().clone(), None if z.is_inference() else z._version
        try:
            found = self(n, z)
        except RuntimeError as error:
            if z.requires_grad and "a leaf Variable that requires grad is being used in an in-place" in str(error):
                raise self._writes(n) from error
            raise
        if not torch.equal(z, kept) if version is None else z._version != version:
            z.detach().copy_(kept)  # z may be the caller's own
            raise self._writes(n)
        if n == 0 and not is_finite(found):
            is_nan = bool(torch.isnan(bare(found)).any())
            raise singular(self.label, self.argument, float(self.times[0]), is_nan, float(bare(z).abs().max()))
        return found

    def _writes(self, n: int) -> ValueError:
        return ValueError(
            f"{self.label}: needs a function that leaves y as it is; at step {n}, t={float(self.times[n]):g}, "
            f"{self.argument} wrote to it; return a new tensor, such as -y for y.neg_(), or work on y.clone()."
        )

    def at(self, t: Tensor, z: Tensor) -> Tensor:
        """Return the right-hand side at a time, unchecked: for tracers, which see one call in place of many."""
        return self.layout.ravel(self._run(t, self.layout.unravel(z)))

    def _autocast(self, t: Tensor, y: Any) -> Any:
        """Return f(t, y) under the autocast of the caller, with its results in the states' dtype."""
        assert self._casts is not None, "it is called where there is one"
        with self._casts.renewed():
            found = self.f(t, y)
        if isinstance(found, tuple | list):
            return tuple(part.to(self.dtype) if isinstance(part, Tensor) else part for part in found)
        return found.to(self.dtype) if isinstance(found, Tensor) else found

    def _of_tuple(self, n: int, t: Tensor, z: Tensor) -> Tensor:
        found, shapes = self._run(t, self.layout.unravel(z)), self.layout.shapes
        if not isinstance(found, tuple | list) or len(found) != len(shapes):
            kind = f"{len(found)} tensors" if isinstance(found, tuple | list) else type(found).__name__
            raise TypeError(
                f"{self.label}: needs a tuple of {len(shapes)} tensors, one for each of y0; at step {n}, "
                f"t={float(t):g}, {self.argument} returned {kind}."
            )
        for k, (part, shape) in enumerate(zip(found, shapes, strict=True)):
            if not isinstance(part, Tensor) or part.shape != shape or part.dtype != self.dtype:
                raise self._wrong(n, t, f" in place {k}", part, shape)
        return self.layout.ravel(tuple(found))

    def _wrong(self, n: int, t: Tensor, which: str, found: Any, shape: Sequence[int]) -> Exception:
        where = f"at step {n}, t={float(t):g}, {self.argument} returned"
        if not isinstance(found, Tensor):
            return TypeError(
                f"{self.label}: needs a tensor of shape {tuple(shape)}{which}; {where} {type(found).__name__}."
            )
        if found.dtype != self.dtype:
            return TypeError(
                f"{self.label}: needs the state's dtype {self.dtype}{which}; {where} {found.dtype}; convert it there, "
                "or pass y0 in that dtype."
            )
        return ValueError(
            f"{self.label}: needs {self._whose} shape {tuple(shape)}{which}; {where} {tuple(found.shape)}; return a "
            "tensor of that shape at every step."
        )


def infinite_at_start(field: Field, orders: np.ndarray, elapsed: np.ndarray, slopes: Tensor, z0: Tensor) -> Tensor:
    """Return derivatives in time at times since the start, [times, *shape], where orders are below 1 infinite at 0.

    They have the sign of f there, and are NaN where it is 0.
    """
    if elapsed.all() or orders.min() >= 1:
        return slopes
    with torch.no_grad():
        value = field.checked(0, field.times[0], z0.detach())
    is_low = field.layout.broadcast(torch.as_tensor(orders < 1)).to(slopes.device)
    is_start = torch.as_tensor(elapsed == 0).to(slopes.device).view(-1, *[1] * z0.ndim)
    return torch.where(is_low & is_start, value * torch.inf, slopes)


def evaluated(field: Field, n: int, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return y as a leaf and f(t_n, y), which has a graph."""
    with torch.enable_grad():
        z = y.detach().requires_grad_()
        return z, field(n, z)


MOVED = 16.0  # times eps: as much may each number of a state be off, and f with it


class Signature:
    """Two numbers that say whether tensors of one size are computed alike twice: a weighted sum and the norm.

    The weights are all positive and differ, so that neither a shift of all entries nor an exchange of two goes unseen;
    sums are in float64, so that they round less than what is summed.
    """

    def __init__(self) -> None:
        self._weights = torch.empty(0)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return those of rows [n, ...], [2, n]."""
        norms = torch.linalg.vector_norm(rows.reshape(rows.shape[0], -1), dim=1, dtype=torch.float64)
        return torch.stack([self.sums(rows), norms])

    def sums(self, rows: Tensor) -> Tensor:
        """Return the weighted sums alone, [n]."""
        flat = rows.reshape(rows.shape[0], -1).double()
        if self._weights.numel() != flat.shape[1]:
            self._weights = 1 + 0.5 * torch.cos(torch.arange(1, flat.shape[1] + 1).to(flat))
        return torch.mv(flat, self._weights)

    def moved(self, z: Tensor, value: Tensor) -> Tensor:
        """Return how far the weighted sum of a `value` of the state z moves, as a part of which each number of z moves.

        It bounds rounding too: where the value is a small difference of large terms, these are what rounds.
        """
        with torch.enable_grad():
            found = self.sums(value[None])
        (slope,) = product(found, [z], torch.ones_like(found))
        return (slope * z.detach()).abs().sum().double()


def size(x: Tensor) -> float:
    """Return the largest absolute value."""
    return float(torch.linalg.vector_norm(x, torch.inf))


def forward_product(z: Tensor, value: Tensor) -> Callable[[Tensor], Tensor]:
    """Return v -> J v, J the Jacobian of `value` in `z`: the derivative of u -> J' u, which is linear, times v."""
    if not value.requires_grad:
        return lambda v: torch.zeros_like(value)
    u = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, z, u, create_graph=True, allow_unused=True)
    if pulled is None or not pulled.requires_grad:
        return lambda v: torch.zeros_like(value)
    return lambda v: torch.autograd.grad(pulled, u, v, retain_graph=True)[0]


def product(out: Tensor, inputs: Sequence[Tensor], g: Tensor) -> list[Tensor]:
    """Return the products of g with the Jacobians of `out` in each of `inputs`; 0 where it does not depend on one."""
    if not out.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    # The graph is kept: f may share a part of it between calls.
    found = torch.autograd.grad(out, inputs, g, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(each) if part is None else part for part, each in zip(found, inputs, strict=True)]


def fault(field: Field, n: int, z: Tensor) -> FloatingPointError:
    """Return what is said of step n, where something is not finite: f at `z`, or the solution after it has grown."""
    if is_undefined(field, n, z):
        return undefined(field, n, z)
    return checks.diverged("fdeint", n, float(field.times[n]), _largest(z))


def is_undefined(field: Field, n: int, z: Tensor) -> bool:
    """Whether f is not finite at a state that is, and that has not grown beyond all measure."""
    return _largest(z) < torch.finfo(z.dtype).max ** 0.1 and not is_finite(field(n, z))


def undefined(field: Field, n: int, z: Tensor, how: str = "") -> FloatingPointError:
    """Return what is said where f is not finite at `z`.

    Args:
        field: The right-hand side.
        n: The step.
        z: The state.
        how: It came about, for the text.
    """
    return checks.undefined("fdeint", n, float(field.times[n]), _largest(z), how)


def check_states(field: Field, states: list[Tensor]) -> None:
    """Raise for the first state that is not finite: one look where all are.

    Raises:
        FloatingPointError: One is not.
    """
    if is_finite(states[-1]):
        return
    for n, state in enumerate(states[1:], 1):
        if not is_finite(state):
            raise fault(field, n if is_finite(field(n - 1, states[n - 1])) else n - 1, states[n - 1])


def check_once(owner: str, grads: Sequence[Tensor]) -> None:
    """Raise where a backward pass is to be differentiated, or is one for many cotangents at once.

    Raises:
        RuntimeError: It is.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{owner}: the adjoint cannot be differentiated again; pass adjoint=False for second derivatives."
        )
    if any(map(is_batched, grads)):
        raise RuntimeError(
            f"{owner}: the adjoint takes one cotangent at a time, and not many as by is_grads_batched=True or "
            "jacobian(vectorize=True); leave these out, or pass adjoint=False with an explicit scheme."
        )


def check_untraced(owner: str, argument: str) -> None:
    """Raise under torch.jit.trace.

    Raises:
        RuntimeError: It traces.
    """
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}({argument}): torch.jit.trace cannot follow it; call it outside the traced part.")


def _largest(z: Tensor) -> float:
    return float(bare(z).abs().max())
