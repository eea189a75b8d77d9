"""From a definition to the weights as kernels take them: cached by value for a fixed alpha, from a table for a tensor.

Learned orders on one device go through tables (`fractional.tables`), which also give the derivatives of the weights in
their order, where every weight depends on one order only. A table has Chebyshev series in alpha, of the weights or of
the matrices of a model over chunks.

Weights are [channels, n], one column for each order. The stencil's other columns, the boundary columns, multiply
boundary values of the signals: d[start], x(0) and dt x'(0), as far as there are any (`fractional/boundary.py`). The
models over chunks and their letters are those of `fractional/linear.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional import tables
from hpfracc_nn.fractional.boundary import Boundary, boundary_of
from hpfracc_nn.fractional.cache import cached_property, nbytes
from hpfracc_nn.fractional.definitions import Definition, family
from hpfracc_nn.fractional.exponentials import SHORTEST, Nodes, exponentials, exponentials_over
from hpfracc_nn.fractional.linear import Column, StateSpace, powers
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import Stencil, consecutive
from hpfracc_nn.fractional.tables import Domain, Points, Table
from hpfracc_nn.fractional.torch.derivatives import derivatives
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.streams import Streams, follow, is_ordered, kept, recorded, streams_of, streams_on
from hpfracc_nn.fractional.torch.tracing import is_traced
from hpfracc_nn.fractional.weights import CACHE, fixed_stencil, transitions, without_negligible


class Source:
    """What weights need besides the values of a learned order: the definition, the grid, exponentials and tables.

    Attributes:
        definition: The operator: with its own order, or with any order in its bounds where that is learned.
        is_fixed: Whether the order is the definition's own.
        family: The definition whose tables serve a learned order; None where there are none.
        nodes: The exponentials that may stand for the weights, None where none can or the series is short.
        states: What a recurrence carries; 0 without exponentials.
        is_host: Whether the weights lie on a CPU, where NumPy may compute them.
    """

    def __init__(
        self, definition: Definition, n: int, dt: float, dtype: torch.dtype, device: torch.device, is_fixed: bool
    ):
        self.definition, self.n, self.dt, self.dtype, self.device = definition, n, dt, dtype, device
        self.is_fixed, in_steps, precision = is_fixed, definition.in_steps(dt), _PRECISIONS[dtype]
        self.family, self.nodes = None, None
        if n > SHORTEST:
            is_own = is_fixed or not definition.is_fixed
            self.nodes = (exponentials if is_own else exponentials_over)(in_steps, n, precision)
        if definition.is_tabulated and not is_fixed:
            self.family = family(in_steps)
        self.states = 0 if self.nodes is None else self.nodes.states
        self._tables: dict[int, Callable[[], Table | None] | None] = {}
        self.lately: dict[Hashable, Callable[[], Weights | None] | None] = {}  # weights seen, by values of their order
        self.is_host = device.type == "cpu" and not is_ordered(device)

    @cached_property
    def domain(self) -> Domain:
        """The interval of a learned order, as all tables of the family have it."""
        assert self.family is not None, "there are tables"
        return tables.domain_of(self.family, self.n)

    @cached_property
    def facts(self) -> Stencil | None:
        """A stencil with the differences, terms and starting index of any order in the bounds; None without tables."""
        return None if self.family is None else fixed_stencil(self.family, self.n, 1.0)

    @cached_property
    def boundary(self) -> Boundary:
        """The boundary around the product, without its columns."""
        assert self.facts is not None, "there are tables"
        return boundary_of(self.facts, None, self.dtype)

    def table(self, length: int) -> Table | None:
        """Return the table of matrices over chunks of `length` samples, or of the whole column for 0; None without one.

        The table has the boundary columns too, unless these have no table.
        """
        if length in self._tables:
            reference = self._tables[length]
            found = None if reference is None else reference()
            if reference is None or found is not None:
                return found
        nodes = self.nodes if self.n > length > 0 else None
        found = None if self.family is None else tables.weight_table(self.family, self.n, nodes, length)
        self._tables[length] = None if found is None else weakref.ref(found)
        return found


_PRECISIONS = {torch.float32: "float32", torch.float64: "float64"}
_kept_source = lru_cache(maxsize=4096)(Source)


def source_of(
    definition: Definition, n: int, dt: float, dtype: torch.dtype, device: torch.device, is_fixed: bool
) -> Source:
    """Return the `Source` of a definition: what its weights need besides the values of a learned order.

    It is cached by the values of the arguments, unless the definition's own order is a tensor. `is_fixed` is whether
    the order is the definition's own, not a learned one.
    """
    make = _kept_source if definition.is_fixed else Source
    return make(definition, n, dt, dtype, device, is_fixed)


class Operators:
    """The columns of a stencil as kernels take them: the weights as linear operators, and the boundary columns.

    Args:
        source: What the weights are made of besides alpha.
        alpha: A learned order; None where it is the definition's own.
        tabulated: Whether a learned order may use tables; without them the formulas are traced, which is slower.
        streams: Those of the CUDA device on which the weights are kept; None for weights that are not.
    """

    def __init__(self, source: Source, alpha: Tensor | None, tabulated: bool, streams: Streams | None):
        self.source, self.definition, self.n, self.dtype = source, source.definition, source.n, source.dtype
        self.device, self.nodes, self.streams = source.device, source.nodes, streams
        self._alpha, self._dt, self._tabulated = alpha, source.dt, tabulated and source.family is not None
        self._orders: Orders | NumpyOrders | None = None
        self._operators: dict[int, Column | StateSpace] = {}
        self._boundary_columns: Tensor | None = None
        self._boundary: Boundary | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the operators and boundary columns that were made so far."""
        return nbytes((self._operators, self._boundary_columns))

    @property
    def is_fixed(self) -> bool:
        """Whether the order is the definition's own."""
        return self._alpha is None

    @cached_property
    def stencil(self) -> Stencil:
        """The stencil, with its formulas in NumPy for fixed orders, and else in torch."""
        if self._alpha is None:
            return fixed_stencil(self.definition, self.n, self._dt)
        alpha = self._alpha.to(torch.float64, copy=True)  # no write to alpha may change it before a backward pass
        return self.definition.stencil_at(alpha, self.n, self._dt, TORCH)

    @property
    def facts(self) -> Stencil:
        """A stencil with this one's differences, terms and starting index; its columns may be of other orders."""
        found = self.source.facts if self._tabulated else None
        return self.stencil if found is None else found

    @property
    def boundary(self) -> Boundary:
        """The boundary around the product, with its columns."""
        if self._boundary is None:
            columns = self.boundary_columns() if self._boundary_columns is None else self._boundary_columns
            known = self.source.boundary if self._tabulated else boundary_of(self.stencil, None, self.dtype)
            self._boundary = known.with_columns(columns)
        return self._boundary

    def column(self) -> Column:
        """Return the whole column of weights, [channels, n], as a linear operator."""
        if 0 not in self._operators:
            table = self.source.table(0) if self._tabulated else None
            if table is None:
                self._operators[0] = Column(self._cast(self._at(np.arange(self.n))), self.streams)
            else:
                self._operators[0] = Column(self._evaluated(table)[0])
        return self._operators[0]  # type: ignore[return-value]

    def chunks(self, length: int) -> StateSpace:
        """Return the state space model over chunks of `length`; with more than one chunk `nodes` may not be None."""
        if length not in self._operators:
            nodes = self.nodes if self.n > length else None
            assert nodes is not None or self.n <= length, "the kernel accepts sums of exponentials only"
            table = self.source.table(length) if self._tabulated else None
            if table is None:
                self._operators[length] = self._computed(nodes, length)
            else:
                self._operators[length] = self._looked_up(table, nodes, length)
        return self._operators[length]  # type: ignore[return-value]

    def boundary_columns(self) -> Tensor | None:
        """Return the columns that multiply boundary values, [terms, channels, n], or None where there are none.

        The columns are the starting column, then those of x(0) and dt x'(0).
        """
        stencil = self.facts
        if self._boundary_columns is None and (stencil.starts or stencil.terms):
            table = self.source.table(0) if self._tabulated else None
            if table is not None and table.has_boundary:
                self._evaluated(table)
            else:
                self._boundary_columns = self._cast(self._computed_columns())
        return self._boundary_columns

    def _computed_columns(self) -> Tensor:
        """Return the boundary columns by the stencil's formulas, in float64, [terms, channels, n]."""
        n, xp = self.n, NUMPY if self.is_fixed else TORCH

        def rows(column: Callable[[np.ndarray], Any]) -> Any:
            return consecutive(column, 0, n, NUMPY) if self.is_fixed else column(np.arange(n))

        columns = self.stencil.boundary_columns(rows, xp)
        assert columns is not None, "there are boundary values"
        found = self._tensor(columns)
        return found.reshape(-1, *found.shape[-2:]).transpose(0, 1)

    def _looked_up(self, table: Table, nodes: Nodes | None, length: int) -> StateSpace:
        if nodes is None:
            return self._single(self._evaluated(table)[0])
        intra, C, *_ = self._evaluated(table)
        orders, count = self._orders_in(table), -(-self.n // length)
        (B,) = orders.constants(table, "B", lambda: (transitions(nodes, length).B,), self.dtype)
        A = orders.constants(table, "A", lambda: powers(transitions(nodes, length).A, count), torch.float64)
        return StateSpace(intra, C, B, A, orders.shared(table, self.dtype))

    def _evaluated(self, table: Table) -> list[Tensor]:
        """Return the arrays of a table at the orders, [channels, ...] each: weights, or matrices of a model.

        The last array has boundary columns, where the table has them; these are kept as a side effect.
        """
        arrays = self._values(self._orders or self._orders_in(table), table)
        if table.has_boundary:
            channels, count, _ = arrays[-1].shape
            # one channel: the axes change places without a copy
            columns = arrays[-1].view(count, 1, -1) if channels == 1 else arrays[-1].transpose(0, 1).contiguous()
            self._boundary_columns = columns
        return arrays

    def _values(self, orders: Orders | NumpyOrders, table: Table) -> list[Tensor]:
        return orders.evaluate(table, self.dtype)

    def _orders_in(self, table: Table) -> Orders | NumpyOrders:
        """Return the weights' orders as points of a table's domain, at which its Chebyshev series are evaluated.

        The points are made for the first table, and kept: all tables of these weights have the same domain.
        """
        if self._orders is None:
            assert self._alpha is not None, "fixed orders have no tables"
            self._orders = orders_in(self._alpha, table.domain, self._dt, self.device)
        return self._orders

    def _computed(self, nodes: Nodes | None, length: int) -> StateSpace:
        if nodes is None:
            return self._single(self._cast(TORCH.toeplitz(self._at(np.arange(self.n)), length)))
        found = transitions(nodes, length)
        intra, C = map(self._cast, found.matrices(self._at(found.lags), TORCH))
        A = tuple(map(self._tensor, powers(found.A, -(-self.n // length))))
        B, A = recorded(self.streams, (self._tensor(found.B).to(self.dtype), A))
        return StateSpace(intra, C, B, A, streams=self.streams)

    def _single(self, intra: Tensor) -> StateSpace:
        """Return the model of one chunk, which has no states, from its matrices `intra` [channels, n, n].

        One state of zeros stands in, as kernels need one.
        """
        channels, length, _ = intra.shape
        zeros = intra.new_zeros(channels, 1, length), intra.new_zeros(length, 1)
        no_decay = torch.zeros(1, dtype=torch.float64, device=self.device)
        C, B, A = recorded(self.streams, (*zeros, no_decay))
        return StateSpace(intra, C, B, (A,), streams=self.streams)

    def _at(self, lags: np.ndarray) -> Tensor:
        values = self._tensor(self.stencil.column(lags))
        return values.reshape(-1, lags.size)

    def _tensor(self, values: np.ndarray | Tensor) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def _cast(self, values: Tensor) -> Tensor:
        if self._alpha is None:
            values = without_negligible(values, TORCH)
        return recorded(self.streams, values.to(self.dtype).contiguous())


class Weights(Operators):
    """The stencil of one definition on `n` samples, and its weights as linear operators.

    Args:
        definition: With alpha a number, numbers, or a tensor of as many values as there are channels.
        n: Samples.
        dt: Their spacing.
        dtype: That of the weights, in which the product is computed.
        device: Where the weights are to lie.
        alpha: A tensor in place of the definition's order, which then may be any within its bounds.
        tabulated: Whether a tensor alpha may use tables; without them the formulas are traced, which is slower.
        streams: Of a CUDA device, where the weights are kept.

    Attributes:
        kept: What callers make of the weights, kept as long as these.
        again: Returns weights of the cache, anew where they were dropped; None for weights that are in no cache.
    """

    def __init__(
        self,
        definition: Definition,
        n: int,
        dt: float,
        dtype: torch.dtype,
        device: torch.device,
        *,
        alpha: Tensor | None = None,
        tabulated: bool = True,
        streams: Streams | None = None,
    ):
        if alpha is None and not definition.is_fixed:
            alpha = definition.alpha
        source = source_of(definition, n, dt, dtype, device, alpha is None)
        Operators.__init__(self, source, alpha, tabulated, streams)
        self.kept: dict[Any, Any] = {}
        self.again: Callable[[], Weights] | None = None

    @classmethod
    def of(
        cls, source: Source, alpha: Tensor | None, tabulated: bool = True, streams: Streams | None = None
    ) -> Weights:
        """Return the weights of a source, of its own order (`alpha` is None) or of a learned one."""
        found = cls.__new__(cls)
        Operators.__init__(found, source, alpha, tabulated, streams)
        found.kept, found.again = {}, None
        return found

    @classmethod
    def plain(cls, source: Source, alpha: Tensor) -> Weights:
        """Return the weights of a learned order that nothing traces, and whose gradient comes from `derivatives`.

        On a CPU NumPy computes them from tables.
        """
        found = cls.of(source, alpha)
        if source.is_host and alpha.is_cpu and source.family is not None:
            found._orders = NumpyOrders(alpha, source.domain, source.dt)
        return found

    def derivatives(self, alpha: Tensor) -> WeightDerivatives:
        """Return the derivative of these weights in alpha; see `WeightDerivatives`.

        Args:
            alpha: The definition's, or what autograd saved of it.
        """
        return WeightDerivatives(self, alpha)

    def at(self, alpha: Tensor) -> Weights:
        """Return the weights of the same source at another alpha, in no cache."""
        return Weights.of(self.source, alpha, self._tabulated)


class WeightDerivatives(Operators):
    """The derivative of weights in alpha: used in place of the weights it gives the derivative of the result.

    The derivative of a channel's weights is that in the channel's own order. The weights themselves are not held: each
    would keep the other alive until the garbage collector finds them.
    """

    def __init__(self, of: Weights, alpha: Tensor):
        super().__init__(of.source, alpha, of._tabulated, None)
        self._orders = of._orders

    @cached_property
    def stencil(self) -> Stencil:
        """The stencil whose columns are the derivatives in alpha, in tensors."""
        assert self._alpha is not None, "only learned orders have derivatives"
        return _derived(self.definition, self._alpha, self.n, self._dt)

    def _values(self, orders: Orders | NumpyOrders, table: Table) -> list[Tensor]:
        return orders.derivatives(table, self.dtype)


def _derived(definition: Definition, alpha: Tensor, n: int, dt: float) -> Stencil:
    """Return a stencil with the derivatives in alpha in place of its columns, by autograd of their formulas.

    The derivatives of a column are those in its own channel's order.
    """
    alpha = TORCH.asarray(alpha)
    of = definition.stencil_at(alpha, n, dt, TORCH)

    def derived(name: str) -> Callable[[np.ndarray], Tensor]:
        def evaluated(at: np.ndarray) -> Tensor:
            (found,) = derivatives(lambda alpha: [getattr(definition.stencil_at(alpha, n, dt, TORCH), name)(at)], alpha)
            return found

        return evaluated

    return replace(
        of,
        column=derived("column"),
        start_column=None if of.start_column is None else derived("start_column"),
        analytic_columns=None if of.analytic_columns is None else derived("analytic_columns"),
    )


def weights_of(
    definition: Definition,
    n: int,
    dt: float,
    dtype: torch.dtype,
    device: torch.device,
    alpha: Tensor | None = None,
) -> Weights:
    """Return the weights of a definition: from the cache where alpha is a number or numbers, else fresh and traced.

    Arguments are those of `Weights`.
    """
    if alpha is not None or not definition.is_fixed:
        return Weights(definition, n, dt, dtype, device, alpha=alpha)

    def build() -> Weights:
        made = Weights(definition, n, dt, dtype, device, streams=streams_on(device))
        made.again = partial(weights_of, definition, n, dt, dtype, device)
        return made

    found = CACHE.get(("torch", definition, n, dt, dtype, device), build)
    follow(found.streams)
    return found


def weights_at(source: Source, alpha: Tensor) -> Weights:
    """Return the weights of a tensor alpha that needs no gradient and lies on a CPU.

    Weights of values that come a second time are cached. An alpha that is learned has others at every step.
    """
    values = alpha.item() if alpha.numel() == 1 else _read(alpha).tobytes()
    lately, key = source.lately, (alpha.shape, values)
    reference = lately.get(key)
    found = None if reference is None else reference()
    if found is None:
        copy = alpha.detach().clone()  # so that no write to alpha changes the weights
        if key not in lately:
            if len(lately) >= _MOST_SEEN:
                lately.clear()
            lately[key] = None
            return Weights.of(source, copy)

        def build() -> Weights:
            made = Weights.of(source, copy, streams=streams_on(source.device))
            made.again = partial(weights_at, source, copy)
            return made

        of = source.definition, source.n, source.dt, source.dtype, source.device
        found = CACHE.get(("torch", "values", *of, *key), build)
        lately[key] = weakref.ref(found)
    if found.streams is not None:
        found.streams.follow()
    return found


_MOST_SEEN = 64  # values of a learned order that `Source.lately` remembers


def orders_in(alpha: Tensor, domain: Domain, dt: float, device: torch.device) -> Orders | NumpyOrders:
    """Return the orders of all channels as points of a domain.

    NumPy computes with them on a CPU, unless a gradient or a transform follows alpha.

    Args:
        alpha: Any shape. A value further outside its bounds than a tenth of their width has weights that are NaN.
        domain: The interval of the orders.
        dt: Spacing of the samples.
        device: Where the tables' arrays are wanted.
    """
    traced = is_traced(alpha, ())
    is_host = alpha.is_cpu and device.type == "cpu" and not is_ordered(device)
    if traced or not is_host or (alpha.requires_grad and torch.is_grad_enabled()):
        return Orders(alpha, domain, dt, device, traced)
    return NumpyOrders(alpha, domain, dt)


class NumpyOrders:
    """Orders as points of a table's domain, in NumPy: on arrays this small a call costs a quarter of torch's."""

    def __init__(self, alpha: Tensor, domain: Domain, dt: float):
        # A copy: the values must stay, whatever an optimizer writes into alpha.
        orders = alpha.item() if alpha.numel() == 1 else _read(alpha).reshape(-1, 1).copy()
        self._points = Points(orders, domain, dt, NUMPY, None)

    def evaluate(self, table: Table, dtype: torch.dtype) -> list[Tensor]:
        """Return the arrays of a table at these orders, each [channels, *shape]."""
        return _split(self._points.basis(table.degree), table, dtype)

    def derivatives(self, table: Table, dtype: torch.dtype) -> list[Tensor]:
        """Return the derivatives in alpha of a table's arrays at these orders, each [channels, *shape]."""
        return _split(self._points.derivative(table.degree), table, dtype)

    def constants(
        self, table: Table, name: str, arrays: Callable[[], tuple[np.ndarray, ...]], dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Return arrays that belong to a table as tensors; they are kept with the table, by `name`."""
        found: tuple[Tensor, ...] | None = table.placed.get((name, _CPU, dtype))
        if found is None:
            found = tuple(torch.as_tensor(array, device=_CPU).to(dtype) for array in arrays())
            table.placed[name, _CPU, dtype] = found
        return found

    def shared(self, table: Table, dtype: torch.dtype) -> dict[Any, Any]:
        """Return the dictionary in which kernels keep what they make of a table in this dtype."""
        found: dict[Any, Any] = table.placed.setdefault(("shared", _CPU, dtype), {})
        return found


_CPU = torch.device("cpu")


def _read(alpha: Tensor) -> np.ndarray:
    return alpha.detach().to(torch.float64).resolve_neg().numpy()


def _split(basis: np.ndarray, table: Table, dtype: torch.dtype) -> list[Tensor]:
    """Return a table's arrays, [channels, ...] each, at one order for each channel.

    `basis` [channels, degree] has the values at these orders of the functions whose coefficients the table has.
    """
    found = np.matmul(basis, table.coefficients)
    if dtype == torch.float32:
        found = found.astype(np.float32)
    if len(table.sizes) == 1:
        return [torch.from_numpy(found.reshape(-1, *table.shapes[0]))]
    arrays, at = [], 0
    for size, shape in zip(table.sizes, table.shapes, strict=True):
        arrays.append(torch.from_numpy(found[..., at : at + size].reshape(-1, *shape)))
        at += size
    return arrays


class Orders:
    """Orders as points of a table's domain, in plain aten, which autograd and transforms follow to any order."""

    def __init__(self, alpha: Tensor, domain: Domain, dt: float, device: torch.device, traced: bool):
        self._device, self._traced = device, traced
        self._points = Points(alpha.reshape(-1, 1).to(device, torch.float64), domain, dt, TORCH, self._constant)

    def evaluate(self, table: Table, dtype: torch.dtype) -> list[Tensor]:
        """Return the arrays of a table at these orders, each [channels, *shape]."""
        return self._arrays(table, self._points.basis(table.degree), dtype)

    def derivatives(self, table: Table, dtype: torch.dtype) -> list[Tensor]:
        """Return the derivatives in alpha of a table's arrays at these orders, each [channels, *shape]."""
        return self._arrays(table, self._points.derivative(table.degree), dtype)

    def constants(
        self, table: Table, name: str, arrays: Callable[[], tuple[np.ndarray, ...]], dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Return arrays that belong to a table as tensors, kept with the table by `name` unless something traces."""

        def make() -> tuple[Tensor, ...]:
            return tuple(torch.as_tensor(array, device=self._device).to(dtype) for array in arrays())

        return self._kept(table.placed, (name, self._device, dtype), make)

    def shared(self, table: Table, dtype: torch.dtype) -> dict[Any, Any]:
        """Return the dictionary in which kernels keep what they make of a table on this device in this dtype.

        While something traces the dictionary is a new one.
        """
        return {} if self._traced else table.placed.setdefault(("shared", self._device, dtype), {})

    def _arrays(self, table: Table, basis: Tensor, dtype: torch.dtype) -> list[Tensor]:
        (coefficients,) = self.constants(table, "coefficients", lambda: (table.coefficients,), torch.float64)
        found = torch.mm(basis, coefficients).to(dtype)
        parts = torch.split_with_sizes(found, table.sizes, dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, table.shapes, strict=True)]

    def _constant(self, name: str, array: np.ndarray) -> Tensor:
        def make() -> Tensor:
            return torch.as_tensor(array, device=self._device)

        return self._kept(_SMALL, (name, self._device), make)

    def _kept(self, store: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
        """Return store[key]; make() is stored there if the key is missing. While something traces, return make() alone.

        What a tracer sees must not be kept.
        """
        return make() if self._traced else kept(streams_of(store, self._device), store, key, make)


_SMALL: dict[Any, Any] = {}  # a few short ranges and matrices for each device
