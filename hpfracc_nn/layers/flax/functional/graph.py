"""FROND: a fractional differential equation over the messages of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.layers import shapes
from hpfracc_nn.layers.flax.functional.core import (
    BIAS_INIT,
    Initializer,
    Params,
    check_fields,
    kernel_init,
    keys,
    settle,
)
from hpfracc_nn.layers.flax.functional.diffusion import Adjacency, Edges, Flow, Graph, attention_flow, mean_flow
from hpfracc_nn.layers.flax.functional.equation import CaputoEquation
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.schemes import Rectangle, Scheme

_FUNCTIONS = ("attention", "diffusion")

Messages = Callable[..., Array]  # func(x, *graph, variables), x's shape


@dataclass(frozen=True)
class FractionalGraphConv(CaputoEquation):
    """Node features after time t1 of a diffusion over the graph that remembers: D^alpha X = F(X), X(0) = x W + b.

    The derivative is Caputo's in time, which stands for depth. F is (A - D) X, with A the attention between the nodes
    at the start ("attention", F-GRAND-l of the paper) or the mean over neighbours ("diffusion"), and D its row sums: 1,
    or 0 at a node at which no edge arrives, which stays as it is. With h = t1 / n_steps and
    `b_k = ((k + 1)**alpha - k**alpha) / Gamma(1 + alpha)`,

        X_n = X_0 + h**alpha sum over j < n of b_(n - 1 - j) F(X_j).

    At alpha = 1 this is GRAND's Euler step X + h F(X). A diffusion forgets what it began with like exp(-t); below
    alpha = 1 like t**-alpha. Steps beyond `longest_step`, 1 at alpha = 1, 0.72 at 0.8 and 0.34 at 0.5, may grow
    instead.

    The graph is a list of directed edges, from edge_index[0] to edge_index[1], or its matrix W, W[i, j] the weight of
    the edge from j to i; dense graphs of up to some thousand nodes are faster as matrices. Several graphs are one with
    a block-diagonal edge_index; `jax.vmap` maps over graphs of one size. Under `jax.jit` shapes are static: pad a list
    with edges of weight 0, which are as edges that are not there. No self loops are added.

    Attributes:
        in_features: Of the input.
        out_features: Of the features that diffuse, and of the output.
        func: "attention", "diffusion", or F(X) itself. Of this core a pure function func(x, edge_index, variables), or
            func(x, edge_index, edge_weight, variables) where weights are given, or func(x, adjacency, variables); of
            the modules for nnx and for linen a module called likewise without variables.
        heads: Of the attention.
        alpha: The order, or one for each of the output's channels, in (0, 1]; the first value where it is learned; or
            an `Alpha`, which then is the order.
        t1: Up to where it diffuses.
        n_steps: Equal steps up to there: the depth.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays, within (0, 1); None is (0, 1).
        use_bias: Whether the encoder `lin` has one.
        scheme: As in `fdeint`.
        history: As in `fdeint`.
        adjoint: As in `fdeint`.
        dtype: What is computed in; None promotes the input and the parameters.
        kernel_init: Of all kernels.
        bias_init: Of all biases.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Shape:
        x [nodes, in_features], edge_index [2, edges], edge_weight [edges] or adjacency [nodes, nodes] ->
        [nodes, out_features]. Messages of half precision are added up in float32.

    Raises:
        ValueError: A shape or a number is out of range, or edge_index names a node that there is not. Traced numbers
            are looked at under `jax.experimental.checkify` only.
        TypeError: An argument has the wrong type.

    Source: Kang et al., FROND, ICLR 2024 (arXiv:2404.17099); the attention is that of Chamberlain et al., GRAND, ICML
        2021 (arXiv:2106.10934).

    Examples:
        >>> ring = jnp.stack([jnp.arange(10), (jnp.arange(10) + 1) % 10])
        >>> core = fjx.functional.FractionalGraphConv(5, 8, alpha=0.6, t1=16.0, n_steps=32)
        >>> params = core.init(jax.random.key(0))
        >>> core(params, jnp.ones((10, 5)), jnp.concatenate([ring, ring[::-1]], 1)).shape
        (10, 8)
    """

    in_features: int
    out_features: int
    _: KW_ONLY
    func: str | Messages = "attention"
    heads: int = 1
    alpha: float | Sequence[float] | Alpha = 0.5
    t1: float = 8.0
    n_steps: int = 32
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    use_bias: bool = True
    scheme: str | Scheme = "rectangle"
    history: str | History = "auto"
    adjoint: bool = True
    dtype: Any = None
    kernel_init: Initializer = kernel_init
    bias_init: Initializer = BIAS_INIT
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_fields(owner, self)
        self._begin()
        for name in ("in_features", "out_features", "heads"):
            settle(self, **{name: errors.count(owner, name, getattr(self, name))})
        shapes.check_channel_orders(owner, self.orders_shape, self.out_features)
        if isinstance(self.func, str):
            errors.one_of(owner, "func", self.func, _FUNCTIONS)
        elif not callable(self.func):
            raise TypeError(
                f"{owner}(func of type {type(self.func).__name__}): needs 'attention', 'diffusion' or what is called "
                "as func(x, edge_index); pass a module."
            )

    @property
    def head_features(self) -> int:
        """Of each query and key."""
        return -(-self.out_features // self.heads)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"lin": ...}, {"attention": {"query": ..., "key": ...}} where there is one, and a learned order."""
        names = ["lin", *(["query", "key"] if self.func == "attention" else [])]
        made = dict(zip(names, keys(type(self).__name__, key, len(names)), strict=True))
        width = self.heads * self.head_features
        params = {"lin": self._linear(made["lin"], self.in_features, self.out_features, self.use_bias, param_dtype)}
        if self.func == "attention":
            params["attention"] = {
                name: self._linear(made[name], self.out_features, width, True, param_dtype) for name in names[1:]
            }
        return {**params, **self._order_params(key, param_dtype)}

    def _linear(self, key: Array, inputs: int, outputs: int, use_bias: bool, param_dtype: Any) -> Params:
        found = {"kernel": self.kernel_init(key, (inputs, outputs), param_dtype)}
        return {**found, "bias": self.bias_init(key, (outputs,), param_dtype)} if use_bias else found

    def longest_step(self, params: Params) -> float | None:
        """Return the longest step with which attention and diffusion are stable on every graph, at the present orders.

        It is that of the rectangle rule, and None with other schemes, whose limits are not known here. The spectrum of
        A - D lies in the disk of radius 1 around -1, which scaled by this step**alpha lies in the scheme's region of
        stability and touches its edge at -2. There are eigenvalues where a graph is bipartite.

        Raises:
            TypeError: The orders are traced.
        """
        owner = type(self).__name__
        scheme = Method.of(owner, self.scheme, self.history, "uniform").scheme
        if not isinstance(scheme, Rectangle):
            return None
        orders = self.alpha_of(params)
        if isinstance(orders, jax.core.Tracer):
            raise TypeError(f"{owner}.longest_step: needs orders that are known; ask for it outside of jax.jit.")
        alpha = float(np.min(np.asarray(orders)))
        return (scheme.stability(alpha) / 2) ** (1 / alpha)

    def __call__(
        self,
        params: Params,
        x: Array,
        edge_index: Array | None = None,
        edge_weight: Array | None = None,
        *,
        adjacency: Array | None = None,
        variables: Any = (),
        key: Array | None = None,
    ) -> Array:
        """Return the features of the nodes at t1.

        Args:
            params: From `init`.
            x: Features, [nodes, in_features].
            edge_index: Sources and targets, [2, edges], integers.
            edge_weight: Of the edges, [edges]; the built-in functions want none below 0.
            adjacency: The graph as a matrix in place of a list, [nodes, nodes].
            variables: What a func of one's own is given besides.
            key: For an order that is random.
        """
        x = of_numpy(x)
        graph = self.graph_of(x, edge_index, edge_weight, adjacency)
        start = self._applied(params["lin"], x)
        if isinstance(self.func, str):
            return self._last(flowing, self._flow(params, graph, start), start, params, key)
        return self._last(_Messages(self.func), (graph.arrays, variables), start, params, key)

    def graph_of(self, x: Array, edge_index: Any, edge_weight: Any, adjacency: Any) -> Graph:
        """Return the graph of a call's arguments, if x and they fit together; else raise."""
        owner = type(self).__name__
        computed_in(owner, x)
        shapes.check_node_features(owner, x.shape, self.in_features)
        return checked_graph(owner, x.shape[0], edge_index, edge_weight, adjacency)

    def state_like(self, x: Array) -> Array:
        """Return zeros in the shape of the features that diffuse, in x's dtype or that of the layer."""
        return jnp.zeros((x.shape[0], self.out_features), self.dtype or x.dtype)

    def _flow(self, params: Params, graph: Graph, start: Array) -> Flow:
        """The flow of a built-in function, in the dtype of states."""
        if self.func == "diffusion":
            return mean_flow(graph, start)
        shape = (start.shape[0], self.heads, self.head_features)
        query, key = (self._applied(params["attention"][name], start).reshape(shape) for name in ("query", "key"))
        return attention_flow(query, key, graph)

    def _applied(self, linear: Params, x: Array) -> Array:
        x, kernel, bias = promote_dtype(x, linear["kernel"], linear.get("bias"), dtype=self.dtype)
        found = x @ kernel
        return found if bias is None else found + bias[None]


def flowing(t: Array, x: Array, flow: Flow) -> Array:
    """Return a built-in right-hand side."""
    return flow(x.astype(flow.weights.dtype)).astype(x.dtype)


@dataclass(frozen=True)
class _Messages:
    """A right-hand side of the user's on a graph.

    Attributes:
        func: Called as func(x, *graph, variables).
    """

    func: Messages

    def __call__(self, t: Array, x: Array, given: tuple[tuple[Array, ...], Any]) -> Array:
        graph, variables = given
        return self.func(x, *graph, variables)


def checked_graph(owner: str, nodes: int, edge_index: Any, edge_weight: Any, adjacency: Any) -> Graph:
    """Return the graph that a layer was given, as a list of edges or as a matrix.

    Raises:
        ValueError: A shape does not fit, an edge names a node that there is not, or there is no graph, or two.
        TypeError: One of them has the wrong type.
    """
    if (edge_index is None) == (adjacency is None):
        raise ValueError(
            f"{owner}: needs a graph, either edge_index [2, edges] or adjacency [nodes, nodes]; pass one of them."
        )
    edge_weight, adjacency = of_numpy(edge_weight), of_numpy(adjacency)
    if adjacency is None:
        return _listed(owner, nodes, edge_index, edge_weight)
    if edge_weight is not None:
        raise ValueError(f"{owner}(edge_weight, adjacency): needs no weights beside a matrix, which holds them.")
    _check_floating(owner, "adjacency", adjacency)
    if adjacency.shape != (nodes, nodes):
        raise ValueError(
            f"{owner}(adjacency of shape {adjacency.shape}): needs [{nodes}, {nodes}], W[i, j] of the edge from j to "
            "i; map over several graphs by jax.vmap."
        )
    return Adjacency(adjacency)


def _listed(owner: str, nodes: int, edge_index: Any, edge_weight: Any) -> Edges:
    if not isinstance(edge_index, jax.Array | np.ndarray) or not jnp.issubdtype(edge_index.dtype, jnp.integer):
        what = f"dtype {edge_index.dtype}" if hasattr(edge_index, "dtype") else f"type {type(edge_index).__name__}"
        raise TypeError(
            f"{owner}(edge_index of {what}): needs an array of integers [2, edges], sources and targets; pass "
            "adjacency=... where it is a matrix."
        )
    shapes.check_pairs(owner, edge_index.shape)
    if edge_weight is not None:
        _check_floating(owner, "edge_weight", edge_weight)
        shapes.check_one_for_each(owner, edge_weight.shape, edge_index.shape[1])
    source, target = _checked_nodes(owner, edge_index, nodes)
    return Edges(source, target, edge_weight)


def _check_floating(owner: str, name: str, given: Any) -> None:
    if not isinstance(given, jax.Array) or not jnp.issubdtype(given.dtype, jnp.floating):
        what = f"dtype {given.dtype}" if hasattr(given, "dtype") else f"type {type(given).__name__}"
        raise TypeError(
            f"{owner}({name} of {what}): needs a floating JAX array; pass jax.numpy.asarray({name}, float)."
        )


def _checked_nodes(owner: str, edge_index: Any, nodes: int) -> Array:
    """Return edges, or raise where one names a node that there is not; of traced ones under checkify."""
    if isinstance(edge_index, jax.core.Tracer):
        message = f"{owner}(edge_index): needs nodes from 0 to {nodes - 1}, those of x; an edge names others."
        return checked(edge_index, ((edge_index >= 0) & (edge_index < nodes)).all(), message)
    if edge_index.size:
        named = np.asarray(edge_index)  # of numbers that a traced function closes over JAX's own minimum is traced
        shapes.check_nodes(owner, int(named.min()), int(named.max()), nodes)
    return jnp.asarray(edge_index)
