"""A fractional equation, ordinary, stochastic or on a graph (FROND), as a layer: from the state at 0 to that at t1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.parameters import Alpha, is_spread
from hpfracc_nn.fractional.torch.tracing import is_batched, is_watched
from hpfracc_nn.layers import shapes
from hpfracc_nn.layers.order import block_bounds, check_block_orders
from hpfracc_nn.layers.torch.fractional import each_on_its_own
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.schemes import Rectangle, Scheme
from hpfracc_nn.solvers.sde import fitting_shape
from hpfracc_nn.solvers.sde_schemes import StochasticScheme
from hpfracc_nn.solvers.torch.modules import CaputoEquation, NeuralFSDE, stochastic_order
from hpfracc_nn.solvers.torch.state import check_untraced, order_numbers
from hpfracc_nn.solvers.torch.traced import check_like
from hpfracc_nn.solvers.volterra import VolterraWeights

HALVES = (torch.float16, torch.bfloat16)


class FDEBlock(CaputoEquation):
    """x to z(t1), where D^alpha z = f(t, z) and z(0) = x: a residual network whose steps remember.

    With the rectangle scheme, h = t1 / n_steps and `b_k = ((k + 1)**alpha - k**alpha) / Gamma(1 + alpha)`,

        z_n = x + h**alpha sum over j < n of b_(n - 1 - j) f(j h, z_j).

    At alpha = 1 every b_k is 1, and the layer is n_steps times z + h f(t, z): a residual network with shared weights. A
    call costs n_steps evaluations of f; backwards, by the exact adjoint, only the n_steps + 1 states are kept and f is
    evaluated again.
    Beside a network that is free to change, a learned order is a hyper-parameter and no measurement.

    The layer can stand in `nn.Sequential`. Eager calls are solved as by `fdeint`, with its checks: f may not draw
    random numbers unless adjoint=False. A compiled or exported graph holds every step in plain operations.

    Args:
        f: The right-hand side, called as f(t, z), t a tensor of no axes, z like x; returns z's shape.
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
        device: Of alpha's parameter.
        dtype: Of alpha's parameter; alpha itself is float64.

    Shape:
        Input and output: any, the same; floating. Half precision reaches f as it is, and is added up in float32.

    Raises:
        ValueError: An argument is out of range, x holds a number that is not finite, or f returns another shape.
        TypeError: An argument has the wrong type.
        FloatingPointError: The solution diverges.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (13); Coelho, Costa & Ferras,
        arXiv:2403.02737 (2024).

    Examples:
        >>> class Field(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(16, 16)
        ...
        ...     def forward(self, t, z):
        ...         return torch.tanh(self.net(z))
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 16),
        ...     FDEBlock(Field(), 0.7, n_steps=8),
        ...     torch.nn.Linear(16, 2),
        ... )
        >>> net(torch.randn(4, 8)).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        f: nn.Module,
        alpha: float | Sequence[float] | Alpha = 0.5,
        *,
        t1: float = 1.0,
        n_steps: int = 8,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        scheme: str | Scheme = "rectangle",
        history: str | History = "auto",
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        owner = type(self).__name__
        check_memory(owner, alpha, bounds)
        super().__init__(
            alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            scheme=scheme,
            history=history,
            mesh="uniform",
            n_steps=errors.count(owner, "n_steps", n_steps),
            adjoint=adjoint,
            manager=manager,
            device=device,
            dtype=dtype,
        )
        self.t1 = errors.real(owner, "t1", t1, 0.0, above=True)
        self.f = errors.function(owner, "f", f)

    def forward(self, x: Tensor) -> Tensor:
        """Return z(t1); same shape, dtype and device as x."""
        if is_spread(x):
            return each_on_its_own(type(self).__name__, self, FDEBlock.forward, [x], [0] if x.ndim > 1 else [])
        check_floating(type(self).__name__, x)
        if x.dtype not in HALVES:
            return self.last(self.f, x, self.t1)
        return self.last(partial(at_half, self.f, x.dtype), x.float(), self.t1).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, t1={self.t1:g}"


class FSDEBlock(nn.Module):
    """x to z(t1), where dZ = drift dt + diffusion dW and z(0) = x, or below alpha = 1 the equation with memory.

    That is the stochastic Volterra equation

        z(t) = x + integral of m(t - s) [drift ds + diffusion dW] from 0 to t,
        m(t) = t**(alpha - 1) / Gamma(alpha).

    With diffusion 0 it is the `FDEBlock` of the same drift. Each call draws other paths, in training and after
    `eval()` alike, because z(t1) is a random variable of the model and not a regulariser: average several calls, or
    what a network makes of them, for a prediction. `torch.manual_seed`, or a generator in the call, makes it
    repeatable. Backwards the same paths are replayed, by the exact adjoint. A compiler runs the solve as it is, outside
    of its graph.

    Args:
        drift: Called as drift(t, z), of z's shape; its parameters are learned.
        diffusion: Called as diffusion(t, z), of the noise type's shape; its parameters are learned.
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
        adjoint: As in `fsdeint`.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.
        device: Of alpha's parameter.
        dtype: Of alpha's parameter; alpha itself is float64.

    Shape:
        Input and output: [..., state], the same; floating. With half precision drift and diffusion run under autocast,
        and what they return is added up in float32.

    Raises:
        ValueError: An argument is out of range, or things do not go together.
        TypeError: An argument has the wrong type.
        FloatingPointError: The solution is not finite.

    Source: Bennedsen, Lunde & Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> class Field(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(16, 16)
        ...
        ...     def forward(self, t, z):
        ...         return torch.tanh(self.net(z))
        >>> FSDEBlock(Field(), Field(), alpha=0.8)(torch.randn(4, 16)).shape
        torch.Size([4, 16])
    """

    def __init__(
        self,
        drift: nn.Module,
        diffusion: nn.Module,
        noise_type: str = "diagonal",
        *,
        alpha: float | Sequence[float] | Alpha = 1.0,
        t1: float = 1.0,
        n_steps: int = 8,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        noise: Noise = Brownian(),  # noqa: B008  a frozen value
        scheme: str | StochasticScheme = "euler",
        weights: str | VolterraWeights = "hybrid",
        interpretation: str = "ito",
        history: str | History = "auto",
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.t1 = errors.real(owner, "t1", t1, 0.0, above=True)
        self.n_steps = errors.count(owner, "n_steps", n_steps)
        errors.claim(owner, "learn_alpha", learn_alpha)
        fixed, order = stochastic_order(owner, alpha, learn_alpha, bounds, device, dtype)
        self.equation = NeuralFSDE(
            drift,
            diffusion,
            noise_type,
            alpha=fixed if order is None else order,
            noise=noise,
            scheme=scheme,
            weights=weights,
            interpretation=interpretation,
            history=history,
            dt=self.t1 / self.n_steps,
            adjoint=adjoint,
            manager=manager,
            device=device,
            dtype=dtype,
        )

    @property
    def alpha(self) -> Tensor:
        """The order in real units, float64; of a random one its mean."""
        return self.equation.alpha

    def forward(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Return z(t1), one path for each state of x; same shape, dtype and device as x.

        Args:
            x: The states at 0.
            generator: Where the noise is drawn; None is the default generator of x's device.
        """
        check_floating(type(self).__name__, x)
        if x.is_meta or x.numel() == 0:  # nothing to draw for: the shape alone
            return self._unsolved(x)
        if x.dtype in HALVES:
            with torch.autocast(x.device.type, x.dtype):
                return self._solved(x.float(), generator).to(x.dtype)
        return self._solved(x, generator)

    def _unsolved(self, x: Tensor) -> Tensor:
        """Return a tensor of the result's shape and dtype in place of a solution, for an x that is meta or empty.

        Drift and diffusion are called once with x, [..., state].

        Raises:
            ValueError: Drift or diffusion returns a tensor of a wrong shape.
            TypeError: Drift or diffusion returns no tensor, or one of another dtype.
        """
        owner, t, equation = type(self).__name__, x.new_zeros(()), self.equation
        drift, diffusion = equation.drift(t, x), equation.diffusion(t, x)
        check_like(owner, "drift", drift, x.shape, x.dtype)
        is_tensor = isinstance(diffusion, Tensor)
        shape = fitting_shape(equation.noise_type, diffusion.shape, x.shape) if is_tensor else x.shape
        check_like(owner, "diffusion", diffusion, shape, x.dtype)
        return x + drift + diffusion.sum()  # no numbers: of the empty sum 0

    def _solved(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        states: Tensor = self.equation(x, (0.0, self.t1), generator=generator)
        return states[-1]

    def extra_repr(self) -> str:
        return f"t1={self.t1:g}, n_steps={self.n_steps}"


def check_memory(owner: str, alpha: float | Sequence[float] | Alpha, bounds: tuple[float, float] | None) -> None:
    """Raise unless orders are in (0, 1], where a solve needs no initial value but the state, and bounds in [0, 1]."""
    if isinstance(alpha, Alpha):
        block_bounds(owner, alpha.bounds)
    else:
        check_block_orders(owner, alpha, order_numbers(owner, alpha), bounds)


def check_floating(owner: str, x: Any) -> None:
    """Raise TypeError unless x is a dense, real floating tensor; raise RuntimeError under torch.jit.trace."""
    check_untraced(owner, "x")
    check_dense(owner, "x", x)
    if not x.is_floating_point():
        raise TypeError(f"{owner}(x of dtype {x.dtype}): needs a floating tensor; convert with x.float().")


def at_half(f: Callable[[Tensor, Tensor], Any], dtype: torch.dtype, t: Tensor, z: Tensor) -> Any:
    """Return f(t, z) in the dtype of z, with f evaluated in half precision, `dtype`: the solver adds up in float32."""
    found = f(t.to(dtype), z.to(dtype))
    return found.to(z.dtype) if isinstance(found, Tensor) else found


_FUNCTIONS = ("attention", "diffusion")


class FractionalGraphConv(CaputoEquation):
    """Node features after time t1 of a diffusion over the graph that remembers: D^alpha X = F(X), X(0) = x W + b.

    The derivative is Caputo's in time, which stands for depth. F is (A - D) X, with A the attention between the nodes
    at the start ("attention", F-GRAND-l of the paper) or the mean over neighbours ("diffusion"), and D its row sums: 1,
    or 0 at a node at which no edge arrives, which stays as it is. With h = t1 / n_steps and
    `b_k = ((k + 1)**alpha - k**alpha) / Gamma(1 + alpha)`,

        X_n = X_0 + h**alpha sum over j < n of b_(n - 1 - j) F(X_j).

    At alpha = 1 this is GRAND's Euler step X + h F(X). A diffusion forgets what it began with like exp(-t); below
    alpha = 1 like t**-alpha, so that nodes stay apart at depths where ordinary diffusion has made them all the same.
    That is robustness to depth, not accuracy: with the depth tuned for each, both are about as good. Steps beyond
    `longest_step`, 1 at alpha = 1, 0.72 at 0.8 and 0.34 at 0.5, may grow instead. Messages are added up in the order of
    the edges, on a CPU the same at every call.

    Several graphs are one with a block-diagonal edge_index, as PyTorch Geometric batches them; its `Data` and `Batch`
    may be passed in place of the three arguments, `layer(data)`. Edges are directed, from edge_index[0] to
    edge_index[1]; pass both directions for an undirected graph. No self loops are added; one that is there takes part
    in the mean and so slows the diffusion.

    Args:
        in_channels: Of the input.
        out_channels: Of the features that diffuse, and of the output.
        func: "attention", "diffusion", or a module called as func(x, edge_index), or func(x, edge_index, edge_weight)
            where weights are given, for x [nodes, out_channels]: F(x) itself, of the same shape.
        heads: Of the attention.
        alpha: The order, or one for each of the output's channels, in (0, 1]; the first value where it is learned; or
            an `Alpha`, which then is the order.
        t1: Up to where it diffuses.
        n_steps: Equal steps up to there: the depth.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays, within (0, 1); None is (0, 1).
        bias: Whether the encoder `lin` has one.
        scheme: As in `fdeint`.
        history: As in `fdeint`.
        adjoint: As in `fdeint`; with False, func may draw random numbers.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha itself is float64.

    Shape:
        x [nodes, in_channels], edge_index [2, edges], edge_weight [edges] -> [nodes, out_channels]. Messages of half
        precision are added up in float32.

    Raises:
        ValueError: A shape or a number is out of range, or edge_index names a node that there is not. In a compiled
            graph numbers are not looked at.
        TypeError: An argument has the wrong type.
        FloatingPointError: The solution diverges.

    Source: Kang et al., FROND, ICLR 2024 (arXiv:2404.17099); the attention is that of Chamberlain et al., GRAND, ICML
        2021 (arXiv:2106.10934).

    Examples:
        >>> ring = torch.stack([torch.arange(10), (torch.arange(10) + 1) % 10])
        >>> edge_index = torch.cat([ring, ring.flip(0)], 1)
        >>> FractionalGraphConv(5, 8, alpha=0.6, t1=16.0, n_steps=32)(
        ...     torch.randn(10, 5), edge_index
        ... ).shape
        torch.Size([10, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        func: str | nn.Module = "attention",
        heads: int = 1,
        alpha: float | Sequence[float] | Alpha = 0.5,
        t1: float = 8.0,
        n_steps: int = 32,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        bias: bool = True,
        scheme: str | Scheme = "rectangle",
        history: str | History = "auto",
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        owner = type(self).__name__
        check_memory(owner, alpha, bounds)
        super().__init__(
            alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            scheme=scheme,
            history=history,
            mesh="uniform",
            n_steps=errors.count(owner, "n_steps", n_steps),
            adjoint=adjoint,
            manager=manager,
            device=device,
            dtype=dtype,
        )
        self.in_channels = errors.count(owner, "in_channels", in_channels)
        self.out_channels = errors.count(owner, "out_channels", out_channels)
        self.t1 = errors.real(owner, "t1", t1, 0.0, above=True)
        shapes.check_channel_orders(owner, self.alpha.shape, self.out_channels)
        self.lin = nn.Linear(
            self.in_channels, self.out_channels, errors.claim(owner, "bias", bias), device=device, dtype=dtype
        )
        self.func = _function(owner, func, self.out_channels, errors.count(owner, "heads", heads), device, dtype)

    @property
    def longest_step(self) -> float | None:
        """The longest step with which attention and diffusion are stable on every graph, at the present orders.

        The step is that of the rectangle rule, and None with other schemes, whose limits are not known here: the
        implicit ones stand longer steps. The spectrum of A - D lies in the disk of radius 1 around -1, which scaled by
        this step**alpha lies in the scheme's region of stability and touches its edge at -2, an eigenvalue of bipartite
        graphs; self loops move it up.
        """
        if not isinstance(self.method.scheme, Rectangle):
            return None
        alpha = float(self.alpha.detach().min())
        return (self.method.scheme.stability(alpha) / 2) ** (1 / alpha)

    def forward(self, x: Any, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        """Return the features of the nodes at t1.

        Args:
            x: Features, [nodes, in_channels]; or an object that has `x`, `edge_index` and, perhaps, `edge_weight`.
            edge_index: Sources and targets, [2, edges], int64.
            edge_weight: Of the edges, [edges]; the built-in functions want none below 0. It goes before that of an
                object.
        """
        owner = type(self).__name__
        if not isinstance(x, Tensor) and edge_index is None:
            x, edge_index, own = _graph_of(owner, x)
            edge_weight = own if edge_weight is None else edge_weight
        check_floating(owner, x)
        shapes.check_node_features(owner, x.shape, self.in_channels)
        pairs = checked_edges(owner, edge_index, edge_weight, x)
        start = self.lin(x)
        state = start.float() if start.dtype in HALVES else start
        return self.last(self._flow(start, pairs, edge_weight), state, self.t1).to(start.dtype)

    def _flow(
        self, start: Tensor, edge_index: Tensor, edge_weight: Tensor | None
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the right-hand side F(t, x) on a graph, a function of t and node features x, [nodes, channels].

        Args:
            start: Node features at time 0, [nodes, channels], of which attention is computed.
            edge_index: Sources and targets, [2, edges].
            edge_weight: The weights of the edges, [edges], or None.
        """
        if isinstance(self.func, GraphAttention | MeanDiffusion):
            flow: Diffusion = self.func(start, edge_index, edge_weight)
            return flow
        graph = (edge_index,) if edge_weight is None else (edge_index, edge_weight)
        messages = partial(_messages, self.func, graph)
        return partial(at_half, messages, start.dtype) if start.dtype in HALVES else messages

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, {super().extra_repr()}, t1={self.t1:g}"


def _messages(func: nn.Module, graph: tuple[Tensor, ...], t: Tensor, x: Tensor) -> Any:
    """Return func(x, *graph) for node features x: the user's `func` as a right-hand side, which also gets a time t."""
    return func(x, *graph)


def checked_edges(owner: str, edge_index: Any, edge_weight: Any, x: Tensor) -> Tensor:
    """Return edge_index, after checking that the edges and their weights fit the nodes of x, [nodes, channels].

    The numbers in edge_index are checked in plain calls only, with one synchronisation of the device.

    Raises:
        ValueError: A shape does not fit, or an edge names a node that x does not have.
        TypeError: edge_index or edge_weight has the wrong type, dtype or device.
    """
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        raise TypeError(
            f"{owner}(edge_index of type {type(edge_index).__name__}): needs a tensor [2, edges] of sources and "
            "targets; of a sparse adjacency matrix, A[i, j] the edge from j to i, pass A.coalesce().indices().flip(0)."
        )
    if edge_index.dtype != torch.int64:
        raise TypeError(
            f"{owner}(edge_index of dtype {edge_index.dtype}): needs int64; convert with edge_index.long()."
        )
    shapes.check_pairs(owner, edge_index.shape)
    if edge_weight is not None:
        _check_weight(owner, edge_weight, edge_index.shape[1])
    for name, each in (("edge_index", edge_index), ("edge_weight", edge_weight)):
        if each is not None and each.device != x.device:
            raise TypeError(
                f"{owner}({name} on {each.device}): needs x's device {x.device}; move it with .to(x.device)."
            )
    if torch.compiler.is_compiling() or is_watched(edge_index) or is_batched(edge_index):
        return edge_index
    if edge_index.is_meta or edge_index.numel() == 0:
        return edge_index
    least, most = torch.stack(edge_index.aminmax()).tolist()
    shapes.check_nodes(owner, least, most, x.shape[0])
    return edge_index


def _check_weight(owner: str, edge_weight: Any, count: int) -> None:
    if not isinstance(edge_weight, Tensor) or not edge_weight.is_floating_point():
        what = f"dtype {edge_weight.dtype}" if isinstance(edge_weight, Tensor) else f"type {type(edge_weight).__name__}"
        raise TypeError(f"{owner}(edge_weight of {what}): needs a floating tensor; convert with edge_weight.float().")
    shapes.check_one_for_each(owner, edge_weight.shape, count)


def _graph_of(owner: str, data: Any) -> tuple[Any, Any, Any]:
    """Return x, edge_index and edge_weight (None: it has none) of an object like PyTorch Geometric's `Data`.

    Args:
        owner: The layer, for messages.
        data: The object.

    Raises:
        TypeError: The object has no `x` or no `edge_index`.
    """
    if not hasattr(data, "x") or not hasattr(data, "edge_index"):
        raise TypeError(
            f"{owner}(x of type {type(data).__name__}): needs a tensor and edge_index, or an object that has x and "
            "edge_index, such as a torch_geometric Data or Batch; pass layer(x, edge_index)."
        )
    return data.x, data.edge_index, getattr(data, "edge_weight", None)


def _function(
    owner: str,
    func: str | nn.Module,
    channels: int,
    heads: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> nn.Module:
    if isinstance(func, str):
        if errors.one_of(owner, "func", func, _FUNCTIONS) == "attention":
            return GraphAttention(channels, heads, device=device, dtype=dtype)
        return MeanDiffusion()
    if not isinstance(func, nn.Module):
        raise TypeError(
            f"{owner}(func of type {type(func).__name__}): needs 'attention', 'diffusion' or a module called as "
            "func(x, edge_index, edge_weight=None); wrap a function in a module."
        )
    return func


@dataclass(frozen=True)
class Diffusion:
    """The right-hand side (A - D) x of a diffusion: each node is drawn to the mean of the nodes with an edge to it.

    Attributes:
        weights: The weights of the edges, A's entries, [edges].
        share: The sum of the weights of the edges that arrive at each node, D's entries, [nodes, 1]: 1, or 0 where none
            arrives.
        source: The node at which each edge begins, [edges].
        target: The node at which each edge ends, [edges].
    """

    weights: Tensor
    share: Tensor
    source: Tensor
    target: Tensor

    def __call__(self, t: Tensor, x: Tensor) -> Tensor:
        """Return (A - D) x for node features x, [nodes, channels], at any time t."""
        messages = self.weights[:, None] * x.index_select(0, self.source)
        return torch.zeros_like(x).index_add(0, self.target, messages) - self.share * x


class MeanDiffusion(nn.Module):
    """Diffusion by the mean over neighbours: A = D_in**-1 W, with W[i, j] the weight of the edge from j to i.

    A is the matrix of a random walk, and D_in the diagonal matrix of W's row sums.
    """

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Diffusion:
        """Return the Diffusion along the edges.

        Args:
            x: Node features, [nodes, channels]; their dtype, float32 at least, is that of A.
            edge_index: Sources and targets, [2, edges].
            edge_weight: Not negative, [edges]; None is 1.
        """
        source, target = edge_index.unbind(0)
        dtype = torch.promote_types(x.dtype, torch.float32)
        weights = x.new_ones(source.shape, dtype=dtype) if edge_weight is None else edge_weight.to(dtype)
        return normalised(weights, source, target, x.shape[0])


class GraphAttention(nn.Module):
    """Diffusion by GRAND's attention: scaled dot products of the node features at time 0, kept for all times.

    With q = W_q x and k = W_k x per head, the edge from j to i has

        A[i, j] = mean over heads of w_ij exp(s_ij) / sum over edges from l to i of w_il exp(s_il),

    s_ij = <q_i, k_j> / sqrt(d).

    Args:
        channels: Features of a node.
        heads: The number of attentions whose mean is taken.
        head_channels: d, the features of each head; None is channels / heads, rounded up.
        device: Of the parameters.
        dtype: Of the parameters.

    Source: Chamberlain et al., GRAND, ICML 2021 (arXiv:2106.10934).
    """

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        head_channels: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.heads = errors.count(owner, "heads", heads)
        each = -(-channels // self.heads) if head_channels is None else head_channels
        self.head_channels = errors.count(owner, "head_channels", each)
        width = self.heads * self.head_channels
        self.query = nn.Linear(channels, width, device=device, dtype=dtype)
        self.key = nn.Linear(channels, width, device=device, dtype=dtype)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Diffusion:
        """Return the Diffusion along the edges, with the attention between the nodes' features x as A.

        Args:
            x: Node features, [nodes, channels].
            edge_index: Sources and targets, [2, edges].
            edge_weight: Not negative, [edges]; None is 1. An edge of weight 0 counts as none.
        """
        source, target = edge_index.unbind(0)
        dtype = torch.promote_types(x.dtype, torch.float32)  # exponentials and sums need more than half precision
        query, key = (self._headed(linear(x)).to(dtype) for linear in (self.query, self.key))
        scores = (query.index_select(0, target) * key.index_select(0, source)).sum(-1) / math.sqrt(self.head_channels)
        sizes = scores.detach()
        if edge_weight is not None:  # relative to a far larger score whose weight is 0, all others would vanish
            factor = edge_weight.to(dtype)[:, None]
            is_some = factor > 0
            sizes = torch.where(is_some, sizes + torch.where(is_some, factor.detach(), 1).log(), -torch.inf)
        peak = scores.new_zeros(x.shape[0], self.heads)
        peak = peak.scatter_reduce(0, target[:, None].expand_as(scores), sizes, "amax", include_self=False)
        exponents = scores - peak.clamp(min=torch.finfo(dtype).min).index_select(0, target)
        if edge_weight is None:
            return normalised(exponents.exp(), source, target, x.shape[0])
        # Scores of weight 0 may lie far above the peak; they have a gradient in their weight.
        found = factor * exponents.clamp(max=math.log(torch.finfo(dtype).max) / 2).exp()
        return normalised(found, source, target, x.shape[0])

    def _headed(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, self.head_channels)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, head_channels={self.head_channels}"


def normalised(weights: Tensor, source: Tensor, target: Tensor, nodes: int) -> Diffusion:
    """Return the Diffusion with edge weights divided by their sum at the target, so that they add up to 1 at each node.

    At a node with no edge, or with none of positive weight, the sum stays 0.

    Args:
        weights: Not negative, [edges], or [edges, heads], of which the mean is taken after the division.
        source: The node at which each edge begins, [edges].
        target: The node at which each edge ends, [edges].
        nodes: The number of nodes.
    """
    if weights.ndim == 1:
        weights = weights[:, None]
    total = weights.new_zeros(nodes, weights.shape[1]).index_add(0, target, weights)
    share = (total > 0).to(weights.dtype)
    found = weights / (total + (1 - share)).index_select(0, target)
    return Diffusion(found.mean(1), share.mean(1, keepdim=True), source, target)
