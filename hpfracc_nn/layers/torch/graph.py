"""FROND: a fractional differential equation over the messages of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.fractional.torch.tracing import is_batched, is_watched
from hpfracc_nn.layers import edges
from hpfracc_nn.layers.torch.blocks import HALVES, at_half, check_floating, check_memory
from hpfracc_nn.layers.torch.diffusion import Diffusion, GraphAttention, MeanDiffusion
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.schemes import Rectangle, Scheme
from hpfracc_nn.solvers.torch.equation import CaputoEquation

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
        edges.check_channel_orders(owner, self.alpha.shape, self.out_channels)
        self.lin = nn.Linear(
            self.in_channels, self.out_channels, errors.claim(owner, "bias", bias), device=device, dtype=dtype
        )
        self.func = _function(owner, func, self.out_channels, errors.count(owner, "heads", heads), device, dtype)

    @property
    def longest_step(self) -> float | None:
        """The longest step with which attention and diffusion are stable on every graph, at the present orders.

        It is that of the rectangle rule, and None with other schemes, whose limits are not known here: the implicit
        ones stand longer steps. The spectrum of A - D lies in the disk of radius 1 around -1, which scaled by this
        step**alpha lies in the scheme's region of stability and touches its edge at -2. There are eigenvalues where a
        graph is bipartite; self loops move them up.
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
            x, edge_index, own = _taken_apart(owner, x)
            edge_weight = own if edge_weight is None else edge_weight
        check_floating(owner, x)
        edges.check_features(owner, x.shape, self.in_channels)
        pairs = checked_edges(owner, edge_index, edge_weight, x)
        start = self.lin(x)
        state = start.float() if start.dtype in HALVES else start
        return self.last(self._flow(start, pairs, edge_weight), state, self.t1).to(start.dtype)

    def _flow(
        self, start: Tensor, edge_index: Tensor, edge_weight: Tensor | None
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return F on this graph."""
        if isinstance(self.func, GraphAttention | MeanDiffusion):
            flow: Diffusion = self.func(start, edge_index, edge_weight)
            return flow
        graph = (edge_index,) if edge_weight is None else (edge_index, edge_weight)
        messages = partial(_messages, self.func, graph)
        return partial(at_half, messages, start.dtype) if start.dtype in HALVES else messages

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, {super().extra_repr()}, t1={self.t1:g}"


def _messages(func: nn.Module, graph: tuple[Tensor, ...], t: Tensor, x: Tensor) -> Any:
    """Return the user's right-hand side."""
    return func(x, *graph)


def checked_edges(owner: str, edge_index: Any, edge_weight: Any, x: Tensor) -> Tensor:
    """Return edge_index, if it and the weights fit the nodes x [nodes, channels].

    Numbers are looked at in plain calls only: one look on the device.

    Raises:
        ValueError: A shape does not fit, or an edge names a node that there is not.
        TypeError: One of them has the wrong type or device.
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
    edges.check_pairs(owner, edge_index.shape)
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
    edges.check_nodes(owner, least, most, x.shape[0])
    return edge_index


def _check_weight(owner: str, edge_weight: Any, count: int) -> None:
    if not isinstance(edge_weight, Tensor) or not edge_weight.is_floating_point():
        what = f"dtype {edge_weight.dtype}" if isinstance(edge_weight, Tensor) else f"type {type(edge_weight).__name__}"
        raise TypeError(f"{owner}(edge_weight of {what}): needs a floating tensor; convert with edge_weight.float().")
    edges.check_one_for_each(owner, edge_weight.shape, count)


def _taken_apart(owner: str, data: Any) -> tuple[Any, Any, Any]:
    """Return the parts of an object like PyTorch Geometric's `Data`."""
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
