"""States, times and right-hand sides as the solvers see them: layouts, checks, autocast, and errors of a step.

Steps work with a state that is one tensor, [*shape]: the user's own, or the parts of the user's tuple joined into a
vector. The history works with states as matrices, [a, r]: a orders alpha, and r numbers that share each order.
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
S = TypeVar("S", Tensor, tuple[Tensor, ...])  # the kind of the user's state


@dataclass(frozen=True)
class Layout:
    """How a state is laid out: the user's tensor or tuple, one tensor for the steps, a matrix [a, r] for the history.

    Attributes:
        shapes: The shape of each tensor of the user's tuple, or of the one tensor.
        is_tuple: Whether the user's state is a tuple.
        varying: The sizes of alpha's axes, as many as the state's axes: 1 where alpha does not vary.
        shape: The shape of the states that steps work with.
        orders: The number a of orders.
        width: The number r of entries of the state that share an order.
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
        """Return the user's state as one tensor, [*shape]."""
        if isinstance(y, Tensor):
            return y
        return torch.cat([part.reshape(-1) for part in y])

    def unravel(self, z: Tensor) -> State:
        """Return states [*time, *shape] as the user has them: a tensor, or a tuple of tensors with the axes of time."""
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
        time = x.shape[1:-1]  # may be empty like the shape, and view() takes an empty tuple but not no argument
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
    """Return the layout of states like `y0` with orders alpha of shape `alpha_shape`.

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
    """Return the detached tensor inside torch.func's wrappers; under vmap it has batch axes too, in any place."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return x.detach()


def is_shared(x: Tensor) -> bool:
    """Return whether `x` is the same for all of a batch: no transform torch.func.vmap has a batch axis in it."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return False
        x = functorch.get_unwrapped(x)
    return True


def is_finite(x: Tensor) -> bool:
    """Return whether all numbers of x are finite; True for a tracer's tensors, which have no numbers."""
    plain = bare(x)
    return is_watched(plain) or bool(torch.isfinite(plain.sum())) or bool(torch.isfinite(plain).all())


_KINDS = ("cpu", "cuda", "mps", "xpu", "xla", "hpu", "mtia")


@dataclass(frozen=True)
class Casts:
    """The settings of torch.autocast at the time of a call, to run f with them later.

    Attributes:
        dtypes: The types of device for which autocast is on, each with its dtype.
        keeps: Whether autocast caches the copy of a parameter in the narrow dtype for further uses.
    """

    dtypes: tuple[tuple[str, torch.dtype], ...]
    keeps: bool

    def eps(self, dtype: torch.dtype, kind: str) -> float:
        """Return eps of the dtype that is computed in on a type of device: autocast's, or `dtype` where that is off."""
        return torch.finfo(dict(self.dtypes).get(kind, dtype)).eps

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Turn autocast with these settings on inside this context.

        While gradients are recorded, no copies of parameters are cached: the gradients of a copy that serves many steps
        would be added up in the narrow dtype.
        """
        keeps = self.keeps and not torch.is_grad_enabled()
        with ExitStack() as stack:
            for kind, dtype in self.dtypes:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=keeps))
            yield


def present(kind: str) -> Casts | None:
    """Return the settings of the autocast that is on, or None if none is.

    Args:
        kind: The states' type of device, such as "cuda".
    """
    if not torch._C._is_any_autocast_enabled() and not torch.is_autocast_enabled(kind):
        return None
    dtypes = tuple((each, torch.get_autocast_dtype(each)) for each in _enabled(kind))
    return Casts(dtypes, torch.is_autocast_cache_enabled())


@contextmanager
def without(kind: str) -> Iterator[None]:
    """Turn autocast off inside this context, for all types of device.

    Args:
        kind: The states' type of device, such as "cuda".
    """
    with ExitStack() as stack:
        for each in _enabled(kind):
            stack.enter_context(torch.autocast(each, enabled=False))
        yield


def _enabled(kind: str) -> list[str]:
    return [each for each in dict.fromkeys((kind, *_KINDS)) if torch.is_autocast_enabled(each)]


_DTYPES = (torch.float32, torch.float64)


def checked_state(owner: str, name: str, y: Any) -> State:
    """Return the state `y`, checked; a list of tensors as a tuple.

    Raises:
        TypeError: `y` is no tensor and no tuple of tensors, has a dtype other than float32 and float64, or its parts
            differ in dtype or device.
        ValueError: `y` holds no numbers, or one that is not finite.
    """
    parts = tuple(y) if isinstance(y, tuple | list) else (y,)
    if not parts:
        raise ValueError(f"{owner}({name}=()): needs a tensor, or some of them; pass the state at the start.")
    for part in parts:
        if not isinstance(part, Tensor):
            is_jax = errors.package_of(type(part), ("jax", "jaxlib")) is not None
            other = f", or call hpfracc_nn.jax.{owner}, which takes arrays of JAX" if is_jax else ""
            raise TypeError(
                f"{owner}({name} of type {type(part).__name__}): needs a tensor, or a tuple of tensors; pass "
                f"torch.as_tensor({name}){other}."
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
    """Return dy0; raise ValueError where its shape, or the shapes of its parts, are not those of y0."""
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
    """Return the orders alpha as a flat float64 NumPy array, [a].

    Raises:
        TypeError: alpha is neither a number nor a floating tensor.
        ValueError: alpha differs within a batch of `torch.func.vmap`.
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
    """Return the output times, a tensor as a float64 NumPy array and anything else as it is.

    Raises:
        ValueError: The times require a gradient, or differ within a batch of `torch.func.vmap`.
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
    """Return the numbers of a tensor as a float64 NumPy array, also inside a transform of torch.func.

    `owner` and `name` are the public function and its argument, for the error message.

    Raises:
        ValueError: The numbers differ within a batch of `torch.func.vmap`.
    """
    if not is_shared(x):
        raise ValueError(
            f"{owner}({name}): needs the same {name} throughout torch.func.vmap; pass an alpha for each entry of y0, "
            f"or call {owner} once for each."
        )
    return np.array(bare(x).tolist(), dtype=np.float64)


def resolution(ts: Any) -> float:
    """Return the relative rounding of times: eps of their dtype, of float64 where they are no floating array."""
    if isinstance(ts, Tensor) and ts.is_floating_point():
        return torch.finfo(ts.dtype).eps
    if isinstance(ts, np.ndarray) and ts.dtype.kind == "f":
        return float(np.finfo(ts.dtype).eps)
    return float(np.finfo(np.float64).eps)


def order_numbers(owner: str, alpha: Any) -> np.ndarray:
    """Return the orders alpha that a caller passes to a module, as a float64 NumPy array.

    Raises:
        TypeError: alpha is a tensor, which the module would not learn, or no number or numbers.
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


NAMES = {torch.float32: "float32", torch.float64: "float64"}  # the dtypes that solvers work in

_TIMES = 1024  # times of the mesh that are split into scalar tensors together

RightHandSide = Callable[[Tensor, Any], State]


class Field:
    """The right-hand side f(t_n, z) at the steps n of a mesh, for states z as steps work with them.

    Args:
        f: The user's function or module of a time and a state.
        layout: How the states are laid out.
        times: The times of the mesh, [n_steps + 1].
        like: A tensor of the states' dtype and device.
        casts: The autocast that f runs under, or None.
        owner: The function or class that solves, for error messages.
        argument: The name of the argument of `owner` that f is, for error messages.
        shape: The shape of what f returns; None is the shape of a state.

    Attributes:
        eps: The rounding of the dtype that f is computed in.
        makes_leaves: Whether f is known to create leaf tensors that require a gradient in each call.
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
        self._part = -1  # index of the part of the times that `_each` holds as scalar tensors
        self._each: Sequence[Tensor] = ()
        self._casts = casts
        self.eps = torch.finfo(like.dtype).eps if casts is None else casts.eps(like.dtype, like.device.type)
        self._run = f if casts is None else self._autocast

    def __call__(self, n: int, z: Tensor) -> Tensor:
        """Return f at the time of step n and the state z, of the shape that f is to return."""
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
        """Return f at a time t of step n and the state z.

        Raises:
            TypeError: f returned no tensor, or another dtype or number of parts than the state's.
            ValueError: f returned a wrong shape.
        """
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
        except TypeError as error:
            errors.note_arguments(error, self.label, self.f, "t, y")
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
        """Return f at a time t and the state z, unchecked: for tracers, which see one call in place of many."""
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
    """Return `slopes`, derivatives of the solution in time, with infinity at the start for entries of orders below 1.

    Args:
        field: The right-hand side.
        orders: alpha's values, [a].
        elapsed: The times of the derivatives, since the start, [times].
        slopes: The derivatives, [times, *shape].
        z0: The state at the start.

    Returns:
        The derivatives, [times, *shape]; the infinite ones have the sign of f at the start, and are NaN where f is 0.
    """
    if elapsed.all() or orders.min() >= 1:
        return slopes
    with torch.no_grad():
        value = field.checked(0, field.times[0], z0.detach())
    is_low = field.layout.broadcast(torch.as_tensor(orders < 1)).to(slopes.device)
    is_start = torch.as_tensor(elapsed == 0).to(slopes.device).view(-1, *[1] * z0.ndim)
    return torch.where(is_low & is_start, value * torch.inf, slopes)


def evaluated(field: Field, n: int, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return y as a new leaf that requires a gradient, and f(t_n, y) with its graph."""
    with torch.enable_grad():
        z = y.detach().requires_grad_()
        return z, field(n, z)


MOVED = 16.0  # times eps: the relative error of each number of a state that two passes may differ by


class Signature:
    """A signature of a tensor, to compare two computations of it: a weighted sum of its entries and their norm.

    The weights are positive and all different, so that neither a shift of all entries nor an exchange of two goes
    unseen; sums are in float64, so that they round less than what is summed.
    """

    def __init__(self) -> None:
        self._weights = torch.empty(0)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the signatures of the n rows of a tensor [n, ...]: weighted sums, then norms, [2, n]."""
        norms = torch.linalg.vector_norm(rows.reshape(rows.shape[0], -1), dim=1, dtype=torch.float64)
        return torch.stack([self.sums(rows), norms])

    def sums(self, rows: Tensor) -> Tensor:
        """Return only the weighted sums of the n rows of a tensor [n, ...], [n]."""
        flat = rows.reshape(rows.shape[0], -1).double()
        if self._weights.numel() != flat.shape[1]:
            self._weights = 1 + 0.5 * torch.cos(torch.arange(1, flat.shape[1] + 1).to(flat))
        return torch.mv(flat, self._weights)

    def moved(self, z: Tensor, value: Tensor) -> Tensor:
        """Return how far the weighted sum of `value`, a function of z, moves per relative change of the numbers of z.

        Times eps, the result bounds rounding too: where `value` is a small difference of large terms, they are what
        rounds.
        """
        with torch.enable_grad():
            found = self.sums(value[None])
        (slope,) = product(found, [z], torch.ones_like(found))
        return (slope * z.detach()).abs().sum().double()


def size(x: Tensor) -> float:
    """Return the largest absolute value of x's numbers."""
    return float(torch.linalg.vector_norm(x, torch.inf))


def forward_product(z: Tensor, value: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function v -> J v, J the Jacobian of `value` in `z`, as the derivative of the linear map u -> J' u."""
    if not value.requires_grad:
        return lambda v: torch.zeros_like(value)
    u = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, z, u, create_graph=True, allow_unused=True)
    if pulled is None or not pulled.requires_grad:
        return lambda v: torch.zeros_like(value)
    return lambda v: torch.autograd.grad(pulled, u, v, retain_graph=True)[0]


def product(out: Tensor, inputs: Sequence[Tensor], g: Tensor) -> list[Tensor]:
    """Return the products of g with the Jacobians of `out` in each of `inputs`; 0 for an input that does not matter."""
    if not out.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    # The graph is kept: f may share a part of it between calls.
    found = torch.autograd.grad(out, inputs, g, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(each) if part is None else part for part, each in zip(found, inputs, strict=True)]


def fault(field: Field, n: int, z: Tensor) -> FloatingPointError:
    """Return the error for step n, where f at `z` is not finite, or else where the solution has grown to infinity."""
    if is_undefined(field, n, z):
        return undefined(field, n, z)
    return checks.diverged("fdeint", n, float(field.times[n]), _largest(z))


def is_undefined(field: Field, n: int, z: Tensor) -> bool:
    """Return whether f is not finite at step n and z, though z is finite and far below the dtype's largest number."""
    return _largest(z) < torch.finfo(z.dtype).max ** 0.1 and not is_finite(field(n, z))


def undefined(field: Field, n: int, z: Tensor, how: str = "") -> FloatingPointError:
    """Return the error for a right-hand side that is not finite at the state `z`.

    Args:
        field: The right-hand side.
        n: Index of the step.
        z: The state.
        how: Words for the message that say how the state came about; may be empty.
    """
    return checks.undefined("fdeint", n, float(field.times[n]), _largest(z), how)


def check_states(field: Field, states: list[Tensor]) -> None:
    """Raise FloatingPointError where a state is not finite; the message names the first such step.

    `states` are those of all steps. Where the last is finite, only that one is tested.

    Raises:
        FloatingPointError: The last state is not finite.
    """
    if is_finite(states[-1]):
        return
    for n, state in enumerate(states[1:], 1):
        if not is_finite(state):
            raise fault(field, n if is_finite(field(n - 1, states[n - 1])) else n - 1, states[n - 1])


def check_once(owner: str, grads: Sequence[Tensor]) -> None:
    """Raise RuntimeError where a backward pass is to be differentiated again, or has a batch of cotangents `grads`.

    Raises:
        RuntimeError: Gradients of the backward pass are recorded, or a cotangent has a batch axis.
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
    """Raise RuntimeError where torch.jit.trace is tracing the call of `owner`.

    Raises:
        RuntimeError: torch.jit.trace is tracing.
    """
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}({argument}): torch.jit.trace cannot follow it; call it outside the traced part.")


def _largest(z: Tensor) -> float:
    return float(bare(z).abs().max())
