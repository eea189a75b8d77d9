"""Layers that solve an equation from the state at 0 to that at t1: ordinary, stochastic, or on a graph (FROND).

A graph is either a list of edges, whose messages are added up by `jax.ops.segment_sum`, or its matrix W, W[i, j] the
weight of the edge from j to i, which is one GEMM. A *flow* is the right-hand side (A - D) x of a diffusion over a
graph: A has the normalised weights of the edges, D its row sums, x the node features. Graphs and flows are pytrees.

`params` are a layer's parameters, nested dicts of arrays; a `key` is JAX's, for a random order, None for its mean; and
`owner` is the class or function that messages name. See `core` for the conventions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array, at_least_single, computed_in, of_numpy
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.layers import shapes
from hpfracc_nn.layers.flax.functional.core import (
    BIAS_INIT,
    Alpha,
    Initializer,
    Params,
    WithOrder,
    hashable,
    kernel_init,
    keys,
    settle,
    settle_fields,
)
from hpfracc_nn.layers.order import block_bounds, check_block_orders, fixed_orders
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.checks import check_stochastic_orders, stochastic_bounds
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax import fdeint, fsdeint
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.rules import NOISE_TYPES
from hpfracc_nn.solvers.schemes import Rectangle, Scheme
from hpfracc_nn.solvers.sde import SDE, StochasticMethod
from hpfracc_nn.solvers.sde_schemes import StochasticScheme
from hpfracc_nn.solvers.volterra import VolterraWeights

Field = Callable[[Array, Array, Any], Array]  # f(t, z, variables), z's shape


class Solving(WithOrder):
    """A core that solves a fractional equation whose order is fixed or learned.

    Attributes:
        order: The learned order; None where it is fixed.
        learn_alpha: Whether the order is learned.
        bounds: The bounds of a learned order.
    """

    learn_alpha: bool
    bounds: Any

    def _settle_order(
        self,
        owner: str,
        check: Callable[[str, Any, np.ndarray], None],
        bounds_of: Callable[[str, Any], tuple[float, float]],
    ) -> None:
        """Set `order` from the fields `alpha`, `bounds` and `learn_alpha`, and `learn_alpha` to whether there is one.

        Args:
            owner: The core's class, for messages.
            check: Raises ValueError where orders given as numbers are out of the equation's range.
            bounds_of: Returns the bounds of a learned order, or raises where they are out of range.
        """
        order = self.alpha
        if isinstance(order, Alpha):
            bounds_of(owner, order.bounds_for(owner, self.bounds, order.shape))  # type: ignore[arg-type]
        else:
            values, order = fixed_orders(owner, self.alpha), None
            check(owner, self.alpha, values)
            if self.learn_alpha:
                order = Alpha(hashable(values.tolist()), bounds_of(owner, self.bounds), values.shape, owner=owner)
        settle(self, order=order, learn_alpha=order is not None)

    def _orders(self, params: Params, key: Array | None) -> float | np.ndarray | Array:
        """Return alpha for one solve: the fixed one, the learned one, or with a key a draw of a random one."""
        alpha = self._present(params, key)
        if alpha is not None:
            return alpha
        return np.asarray(self.alpha) if isinstance(self.alpha, tuple) else self.alpha  # type: ignore[no-any-return]


class CaputoEquation(Solving):
    """A core that solves a Caputo equation of an order in (0, 1] up to t1; subclasses have the right-hand side."""

    t1: float
    n_steps: int
    scheme: Any
    history: Any
    adjoint: bool
    manager: Any

    def _begin(self) -> None:
        """Check the fields, store them converted, and set `order`; for a subclass's `__post_init__`."""
        owner = type(self).__name__
        settle_fields(owner, self)
        Method.of(owner, self.scheme, self.history, "uniform")
        self._settle_order(owner, partial(check_block_orders, bounds=self.bounds), block_bounds)

    def _last(self, f: Field, variables: Any, z0: Array, params: Params, key: Array | None) -> Array:
        """Return the state at t1, in the dtype of `z0`; half precision is computed in float32.

        Args:
            f: The right-hand side f(t, z, variables).
            variables: The parameters of f, a pytree in which gradients may be taken.
            z0: The state at 0.
            params: The layer's parameters, of which only those of the order are read.
            key: Randomness of a random order, or None for its mean.
        """
        z0 = of_numpy(z0)
        dtype = computed_in(type(self).__name__, z0)
        if 0 in z0.shape:
            return z0
        if dtype != z0.dtype.name:
            f = AtHalf(f, z0.dtype)
        states = fdeint(
            f,
            z0.astype(dtype),
            (0.0, self.t1),
            self._orders(params, key),
            scheme=self.scheme,
            history=self.history,
            n_steps=self.n_steps,
            adjoint=self.adjoint,
            args=variables,
            manager=self.manager,
        )
        return states[-1].astype(z0.dtype)


@dataclass(frozen=True)
class AtHalf:
    """A right-hand side that is evaluated in half precision while the solver's state is in float32.

    Attributes:
        f: The right-hand side.
        dtype: The dtype in which f gets t and z.
    """

    f: Field
    dtype: Any

    def __call__(self, t: Array, z: Array, variables: Any) -> Any:
        """Return f(t, z, variables), evaluated in `dtype`, in the dtype of z."""
        found = self.f(jnp.asarray(t).astype(self.dtype), z.astype(self.dtype), variables)
        return found.astype(z.dtype) if isinstance(found, jax.Array) else found


@dataclass(frozen=True)
class FDEBlock(CaputoEquation):
    """x to z(t1), where D^alpha z = f(t, z) and z(0) = x: a residual network whose steps remember.

    With the rectangle scheme, h = t1 / n_steps and `b_k = ((k + 1)**alpha - k**alpha) / Gamma(1 + alpha)`,

        z_n = x + h**alpha sum over j < n of b_(n - 1 - j) f(j h, z_j).

    At alpha = 1 every b_k is 1, and the layer is n_steps times z + h f(t, z): a residual network with shared weights.
    Beside a network that is free to change, a learned order is a hyper-parameter and no measurement.

    Attributes:
        f: The right-hand side. Of this core a pure function f(t, z, variables) of z's shape; of the modules for nnx and
            for linen a module called as f(t, z), whose parameters are learned.
        alpha: The order, or orders along the last of x's axes, in (0, 1]; the first value where it is learned; or an
            `Alpha`, which then is the order.
        t1: Where the solution is read.
        n_steps: Equal steps up to there.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays, within (0, 1); None is (0, 1).
        scheme: As in `fdeint`; "predictor_corrector" costs twice as much and is more accurate for smooth f.
        history: As in `fdeint`.
        adjoint: As in `fdeint`.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Shape:
        Input and output: any, the same; floating. Half precision reaches f as it is, and is added up in float32.

    Raises:
        ValueError: An argument is out of range, or f returns another shape.
        TypeError: An argument has the wrong type.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (13); Coelho, Costa & Ferras,
        arXiv:2403.02737 (2024).

    Examples:
        >>> core = fjx.functional.FDEBlock(lambda t, z, w: jnp.tanh(z @ w), 0.7, n_steps=8)
        >>> core(core.init(), jnp.ones((4, 16)), jnp.eye(16)).shape
        (4, 16)
    """

    f: Field
    alpha: float | Sequence[float] | Alpha = 0.5
    _: KW_ONLY
    t1: float = 1.0
    n_steps: int = 8
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    scheme: str | Scheme = "rectangle"
    history: str | History = "auto"
    adjoint: bool = True
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        self._begin()

    def __call__(self, params: Params, x: Array, variables: Any = (), *, key: Array | None = None) -> Array:
        """Return z(t1); same shape and dtype as x.

        Args:
            params: From `init`.
            x: The state at 0.
            variables: What f is given besides, a pytree of arrays, which gradients may be taken in.
            key: For an order that is random.
        """
        return self._last(self.f, variables, x, params, key)


@dataclass(frozen=True)
class FSDEBlock(Solving):
    """x to z(t1), where dZ = drift dt + diffusion dW and z(0) = x, or below alpha = 1 the equation with memory.

    That is the stochastic Volterra equation

        z(t) = x + integral of m(t - s) [drift ds + diffusion dW] from 0 to t,
        m(t) = t**(alpha - 1) / Gamma(alpha).

    With diffusion 0 it is the `FDEBlock` of the same drift. Each key has other paths, in training and in evaluation
    alike, because z(t1) is a random variable of the model and not a regulariser: average several calls, or what a
    network makes of them, for a prediction. Backwards the same paths are replayed, by the exact adjoint.

    Attributes:
        drift: Of this core a pure function drift(t, z, variables) of z's shape; of the modules for nnx and for linen a
            module called as drift(t, z), whose parameters are learned.
        diffusion: Likewise, of the noise type's shape.
        noise_type: "additive", "diagonal", "scalar" or "general"; see `StochasticEquation`.
        alpha: The order, or orders along the last of x's axes, in (1/2, 1]; the first value where it is learned, then
            below 1; or an `Alpha`, which then is the order.
        t1: Where the solution is read.
        n_steps: Equal steps up to there.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays, within (1/2, 1); None is (1/2, 1).
        noise: What drives the equation; see `fsdeint`.
        scheme: As in `fsdeint`.
        weights: As in `fsdeint`.
        interpretation: As in `fsdeint`.
        history: As in `fsdeint`.
        adjoint: As in `fsdeint`; forward mode needs False.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Shape:
        Input and output: [..., state], the same; floating. Half precision reaches drift and diffusion as it is, and is
        added up in float32.

    Raises:
        ValueError: An argument is out of range, or things do not go together.
        TypeError: An argument has the wrong type.

    Source: Bennedsen, Lunde & Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> drift, diffusion = (
        ...     lambda t, z, w: jnp.tanh(z @ w),
        ...     lambda t, z, w: 0.1 * jnp.ones_like(z),
        ... )
        >>> core = fjx.functional.FSDEBlock(drift, diffusion, alpha=0.8)
        >>> core(
        ...     core.init(), jnp.ones((4, 16)), (jnp.eye(16), ()), noise_key=jax.random.key(0)
        ... ).shape
        (4, 16)
    """

    drift: Field
    diffusion: Field
    noise_type: str = "diagonal"
    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha = 1.0
    t1: float = 1.0
    n_steps: int = 8
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    noise: Noise = Brownian()  # noqa: RUF009  a frozen value
    scheme: str | StochasticScheme = "euler"
    weights: str | VolterraWeights = "hybrid"
    interpretation: str = "ito"
    history: str | History = "auto"
    adjoint: bool = True
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        owner = "FSDEBlock"
        settle_fields(owner, self)
        errors.one_of(owner, "noise_type", self.noise_type, NOISE_TYPES)
        self._settle_order(owner, check_stochastic_orders, stochastic_bounds)
        method = StochasticMethod.of(owner, self.noise, self.scheme, self.weights, self.interpretation, self.history)
        method.rule(self.noise_type, 0.75 if self.learn_alpha else float(fixed_orders(owner, self.alpha).min()))

    def __call__(
        self,
        params: Params,
        x: Array,
        variables: tuple[Any, Any] = ((), ()),
        *,
        noise_key: Array,
        key: Array | None = None,
    ) -> Array:
        """Return z(t1), one path for each state of x; same shape and dtype as x.

        Args:
            params: From `init`.
            x: The states at 0.
            variables: What drift and what diffusion are given besides, pytrees of arrays, which gradients may be taken
                in.
            noise_key: Where the noise is drawn.
            key: For an order that is random.
        """
        x = of_numpy(x)
        dtype = computed_in("FSDEBlock", x)
        if 0 in x.shape:
            return x
        fields = (self.drift, self.diffusion)
        if dtype != x.dtype.name:
            fields = (AtHalf(self.drift, x.dtype), AtHalf(self.diffusion, x.dtype))
        states = fsdeint(
            SDE(_Part(fields[0], 0), _Part(fields[1], 1), self.noise_type),
            x.astype(dtype),
            (0.0, self.t1),
            args=variables,
            alpha=self._orders(params, key),
            noise=self.noise,
            scheme=self.scheme,
            weights=self.weights,
            interpretation=self.interpretation,
            history=self.history,
            adjoint=self.adjoint,
            key=noise_key,
            dt=self.t1 / self.n_steps,
            manager=self.manager,
        )
        return states[-1].astype(x.dtype)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Part:
    """Drift or diffusion as a function of (t, z, (drift's variables, diffusion's variables)).

    Attributes:
        f: The function itself, of (t, z, its own variables).
        index: 0 for the drift, 1 for the diffusion.
    """

    f: Field
    index: int

    def __call__(self, t: Array, z: Array, variables: tuple[Any, Any]) -> Array:
        return self.f(t, z, variables[self.index])


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
        kernel_init: Draws all kernels.
        bias_init: Draws all biases.
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
        self._begin()
        given = np.shape(self.alpha) if self.order is None else self.order.shape
        shapes.check_channel_orders(owner, given, self.out_features)  # type: ignore[arg-type]
        if isinstance(self.func, str):
            errors.one_of(owner, "func", self.func, _FUNCTIONS)
        elif not callable(self.func):
            raise TypeError(
                f"{owner}(func of type {type(self.func).__name__}): needs 'attention', 'diffusion' or what is called "
                "as func(x, edge_index); pass a module."
            )

    @property
    def head_features(self) -> int:
        """Features of a query or key of one head of the attention."""
        return -(-self.out_features // self.heads)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return first parameters: {"lin": ...}, {"attention": {"query": ..., "key": ...}} if any, and a learned order.

        Each of "lin", "query" and "key" has a "kernel", [inputs, outputs], and a "bias", [outputs], but "lin" has no
        bias where `use_bias` is False.
        """
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
        if use_bias:
            found["bias"] = self.bias_init(jax.random.fold_in(key, 1), (outputs,), param_dtype)
        return found

    def longest_step(self, params: Params) -> float | None:
        """Return the longest step with which attention and diffusion are stable on every graph, at the present orders.

        The step is that of the rectangle rule, and None with other schemes, whose limits are not known here. The
        spectrum of A - D lies in the disk of radius 1 around -1, which scaled by this step**alpha lies in the scheme's
        region of stability and touches its edge at -2, an eigenvalue of bipartite graphs.

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
        """Return the graph of a call's arguments, a list of edges or a matrix, after checking that it fits x.

        Raises:
            TypeError: An argument has the wrong type or dtype.
            ValueError: A shape does not fit, an edge names a node that x does not have, or there is no graph, or two.
        """
        owner = type(self).__name__
        computed_in(owner, x)
        shapes.check_node_features(owner, x.shape, self.in_features)
        return checked_graph(owner, x.shape[0], edge_index, edge_weight, adjacency)

    def state_like(self, x: Array) -> Array:
        """Return zeros, [nodes, out_features], like the features that diffuse, in the layer's dtype or that of x."""
        return jnp.zeros((x.shape[0], self.out_features), self.dtype or x.dtype)

    def _flow(self, params: Params, graph: Graph, start: Array) -> Flow:
        """Return the flow of the built-in function that the field `func` names, on a graph.

        Args:
            params: The layer's parameters.
            graph: A list of edges or a matrix.
            start: Node features at time 0, [nodes, out_features], of which attention is computed.
        """
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
    """Return flow(x), computed in the flow's dtype, in that of x: a built-in function as a right-hand side f(t, x)."""
    return flow(x.astype(flow.weights.dtype)).astype(x.dtype)


@dataclass(frozen=True)
class _Messages:
    """The user's function on a graph as a right-hand side f(t, x, (graph, variables)).

    Attributes:
        func: Called as `func(x, *graph, variables)`; graph is (edge_index,), (edge_index, edge_weight) or (adjacency,).
    """

    func: Messages

    def __call__(self, t: Array, x: Array, given: tuple[tuple[Array, ...], Any]) -> Array:
        graph, variables = given
        return self.func(x, *graph, variables)


def checked_graph(owner: str, nodes: int, edge_index: Any, edge_weight: Any, adjacency: Any) -> Graph:
    """Return the graph of a layer's arguments, a list of edges or a matrix, after checking it.

    Args:
        owner: The layer, for messages.
        nodes: The number of nodes.
        edge_index: Sources and targets, [2, edges], or None.
        edge_weight: [edges], or None.
        adjacency: The matrix in place of a list, [nodes, nodes], or None.

    Raises:
        ValueError: A shape does not fit, an edge names a node that there is not, or there is no graph, or two.
        TypeError: An argument has the wrong type or dtype.
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
    """Return `edge_index` as an array; raise ValueError unless its entries are from 0 to `nodes` - 1.

    Traced edges are checked under `checkify` only.
    """
    if isinstance(edge_index, jax.core.Tracer):
        message = f"{owner}(edge_index): needs nodes from 0 to {nodes - 1}, those of x; an edge names others."
        return checked(edge_index, ((edge_index >= 0) & (edge_index < nodes)).all(), message)
    if edge_index.size:
        named = np.asarray(edge_index)  # of numbers that a traced function closes over JAX's own minimum is traced
        shapes.check_nodes(owner, int(named.min()), int(named.max()), nodes)
    return jnp.asarray(edge_index)


class Edges(NamedTuple):
    """A graph as a list of directed edges.

    Attributes:
        source: The node at which each edge begins, [edges].
        target: The node at which each edge ends, [edges].
        weight: Weights, not negative, [edges]; None is 1. An edge of weight 0 counts as none, and pads a list.
    """

    source: Array
    target: Array
    weight: Array | None = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The graph as a user's `func` gets it: (edge_index,), [2, edges], or (edge_index, edge_weight)."""
        pairs = jnp.stack([self.source, self.target])
        return (pairs,) if self.weight is None else (pairs, self.weight)

    def factors(self, dtype: Any) -> Array:
        """Return the weights of the edges, [edges, 1], in `dtype`."""
        if self.weight is None:
            return jnp.ones((self.source.shape[0], 1), dtype)
        return self.weight.astype(dtype)[:, None]

    def products(self, query: Array, key: Array) -> Array:
        """Return the inner product of each edge's query, at the target, and key, at the source: [edges, heads].

        `query` and `key` are those of the nodes, [nodes, heads, d].
        """
        return (query[self.target] * key[self.source]).sum(-1)

    def total(self, values: Array, nodes: int) -> Array:
        """Return the sum of the values, [edges, heads], of the edges that end at each node: [nodes, heads]."""
        return arrived(values, self.target, nodes)

    def peak(self, values: Array, nodes: int) -> Array:
        """Return the largest value, of [edges, heads], among the edges that end at each node: [nodes, heads].

        It is minus infinity at a node where no edge ends.
        """
        return unplaced(partial(jax.ops.segment_max, num_segments=nodes), values, self.target)  # type: ignore[no-any-return]

    def at_targets(self, values: Array) -> Array:
        """Return for each edge the value of its target: of values [nodes, heads], [edges, heads]."""
        return values[self.target]

    def flow(self, weights: Array, share: Array) -> Flow:
        """Return the flow of this graph.

        Args:
            weights: A's entries, [edges].
            share: D's entries, the sums of A at each node, [nodes, 1].
        """
        return EdgeFlow(weights, share, self.source, self.target)


class Adjacency(NamedTuple):
    """A graph as a matrix.

    Attributes:
        weight: W[i, j] >= 0, the weight of the edge from j to i, [nodes, nodes]; 0 where there is no edge.
    """

    weight: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The graph as a user's `func` gets it: (adjacency,), the matrix [nodes, nodes]."""
        return (self.weight,)

    def factors(self, dtype: Any) -> Array:
        """Return the weights of the edges, [nodes, nodes, 1], in `dtype`."""
        return self.weight.astype(dtype)[..., None]

    def products(self, query: Array, key: Array) -> Array:
        """Return the inner products of the query at i and the key at j, [nodes, nodes, heads].

        `query` and `key` are those of the nodes, [nodes, heads, d].
        """
        return jnp.einsum("ihd,jhd->ijh", query, key)

    def total(self, values: Array, nodes: int) -> Array:
        """Return the sum of the values of the edges that end at each node: of [nodes, nodes, heads], [nodes, heads]."""
        return values.sum(1)

    def peak(self, values: Array, nodes: int) -> Array:
        """Return the largest value among the edges that end at each node: of [nodes, nodes, heads], [nodes, heads]."""
        return values.max(1, initial=-jnp.inf)

    def at_targets(self, values: Array) -> Array:
        """Return for each edge the value of its target: of values [nodes, heads], [nodes, 1, heads], to broadcast."""
        return values[:, None]

    def flow(self, weights: Array, share: Array) -> Flow:
        """Return the flow of this graph.

        Args:
            weights: A, [nodes, nodes].
            share: D's entries, the row sums of A, [nodes, 1].
        """
        return MatrixFlow(weights, share)


class EdgeFlow(NamedTuple):
    """The flow (A - D) x of a graph, computed edge by edge.

    Attributes:
        weights: A's entries, [edges].
        share: D's entries, the sum of the weights of the edges that end at each node, [nodes, 1]: 1, or 0 for no edge.
        source: The node at which each edge begins, [edges].
        target: The node at which each edge ends, [edges].
    """

    weights: Array
    share: Array
    source: Array
    target: Array

    def __call__(self, x: Array) -> Array:
        """Return (A - D) x for node features x, [nodes, channels]."""
        messages = self.weights[:, None] * x[self.source]
        return arrived(messages, self.target, x.shape[0]) - self.share * x


class MatrixFlow(NamedTuple):
    """The flow (A - D) x of a graph, computed as a product with the matrix A.

    Attributes:
        weights: A, [nodes, nodes].
        share: D's entries, the row sums of A, [nodes, 1]: 1, or 0 for a row of zeros.
    """

    weights: Array
    share: Array

    def __call__(self, x: Array) -> Array:
        """Return (A - D) x for node features x, [nodes, channels]."""
        return jnp.matmul(self.weights, x, precision=jax.lax.Precision.HIGHEST) - self.share * x


Graph = Edges | Adjacency
Flow = EdgeFlow | MatrixFlow


def arrived(values: Array, target: Array, nodes: int) -> Array:
    """Return the sum of the values, [edges, ...], of the edges whose target is each node: [nodes, ...]."""
    return unplaced(partial(jax.ops.segment_sum, num_segments=nodes), values, target)  # type: ignore[no-any-return]


def mean_flow(graph: Graph, x: Array) -> Flow:
    """Return the flow by the mean over neighbours: A = D_in**-1 W, the matrix of a random walk.

    Args:
        graph: The graph, with W as its weights; D_in are the row sums of W.
        x: Node features, [nodes, channels]; their dtype, float32 at least, is that of A.
    """
    dtype = at_least_single(x.dtype)
    return normalised(graph, graph.factors(dtype), x.shape[0])


def attention_flow(query: Array, key: Array, graph: Graph) -> Flow:
    """Return the flow by GRAND's attention, scaled dot products of queries and keys of the nodes.

        A[i, j] = mean over heads of w_ij exp(s_ij) / sum over edges from l to i of w_il exp(s_il),

    s_ij = <q_i, k_j> / sqrt(d).

    Args:
        query: The queries q of the nodes, [nodes, heads, d].
        key: The keys k of the nodes, [nodes, heads, d].
        graph: The graph, with w as its weights.

    Source: Chamberlain et al., GRAND, ICML 2021 (arXiv:2106.10934).
    """
    nodes, _, d = query.shape
    dtype = at_least_single(query.dtype)  # exponentials and sums need more than half precision
    scores = graph.products(query.astype(dtype), key.astype(dtype)) / math.sqrt(d)
    factor = graph.factors(dtype)
    sizes, is_some = jax.lax.stop_gradient(scores), jax.lax.stop_gradient(factor) > 0
    # Relative to a far larger score whose weight is 0, all others would vanish: it is left out of the peak.
    sizes = jnp.where(is_some, sizes + jnp.log(jnp.where(is_some, jax.lax.stop_gradient(factor), 1)), -jnp.inf)
    peak = jnp.maximum(graph.peak(sizes, nodes), jnp.finfo(dtype).min)
    # Scores of weight 0 may lie far above the peak; they have a gradient in their weight.
    exponents = jnp.minimum(scores - graph.at_targets(peak), math.log(jnp.finfo(dtype).max) / 2)
    return normalised(graph, factor * jnp.exp(exponents), nodes)


def normalised(graph: Graph, weights: Array, nodes: int) -> Flow:
    """Return the flow whose edge weights are divided by their sum at the target, and add up to 1 at each node.

    At a node with no edge, or with none of positive weight, the sum stays 0.

    Args:
        graph: The graph.
        weights: Not negative, [edges, heads] or [nodes, nodes, heads]; the mean over heads is taken after the division.
        nodes: The number of nodes.
    """
    total = graph.total(weights, nodes)
    share = (total > 0).astype(weights.dtype)
    found = weights / graph.at_targets(total + (1 - share))
    return graph.flow(found.mean(-1), share.mean(-1, keepdims=True))
