"""LSTM and GRU whose cells remember by a power law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.layers.torch.recurrent.base import Hidden, Recurrent
from hpfracc_nn.layers.torch.recurrent.cells import CELLS, Cell
from hpfracc_nn.layers.torch.recurrent.streaming import RecurrentState
from hpfracc_nn.selection import BackendManager


class FractionalLSTM(Recurrent):
    """`torch.nn.LSTM` whose forget gate looks at a power-law average of all past cell states, not at the last one.

        c_t = f_t * m_t + i_t * tanh(...),
        m_t = sum over k >= 1 of a_k c_(t-k),    a_k = -w_k(alpha),

    where w_k are Grünwald's weights, `(1 - z)**alpha = sum of w_k z**k`; gates, candidate and output
    `h_t = o_t * tanh(c_t)` are torch's. For 0 < alpha <= 1 no a_k is negative and they add up to 1: m is an average, in
    which lag k counts about `alpha k**(-1-alpha) / Gamma(1 - alpha)`. At alpha = 1 it is c_(t-1), and the layer is
    `torch.nn.LSTM`. c_0 is the one state before the series; what would be before it is 0, and the weights are not
    divided by the sum of those that are used: m_1 = alpha c_0.

    The paper's cell with a long memory, mLSTM, has no forget gate, c_t = m_t + i_t * tanh(...), sums over the last K
    states and has d = alpha between 0 and 1/2, which its dynamic form computes from the inputs. Here the gate stays, so
    that torch's LSTM is a special case, and alpha is a parameter.

    With `memory=None` the whole past counts, in time O(n): by exponentials whose error is below 1e-7 of a weight in
    float32 and 1e-11 in float64, or whatever else the BackendManager picks. With `memory=K` the sum ends at lag K,
    where it is exact; the weights that are left out, about K**-alpha / Gamma(1 - alpha) together, are missing, not
    shared out. A backward pass keeps seven numbers per unit and step beside the inputs.

    Args:
        input_size: Inputs.
        hidden_size: Units.
        num_layers: Layers, each on the outputs of the one before.
        bias: Whether gates have a bias.
        batch_first: Whether inputs and outputs are [batch, n, ...].
        dropout: Of the outputs of all layers but the last, in training.
        bidirectional: Whether a second set of units reads the series from its end.
        proj_size: Outputs per direction, where they are a projection of the units; 0 is none.
        alpha: The order, one for all units of all layers and directions, or a list with one for each of `hidden_size`;
            or an `Alpha` or `ProbabilisticAlpha` of shape [] or [hidden_size], which then is the layer's `order`.
        learn_alpha: Whether alpha is a parameter, `order`; an `Alpha` always is one.
        bounds: Where a learned alpha stays, within (0, 1), which is the default.
        memory: The largest lag that counts, or None for all.
        manager: Who chooses how the past is added up; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha and its weights are computed in float64 whatever it is.

    Shape:
        Input [n, batch, input_size], or [n, input_size], or a PackedSequence; hx a pair (h, c), each
        [num_layers * directions, batch, outputs or units] (no batch where the input has none). Output of the same
        layout with directions * outputs at each step, and the pair of the last h and c. Half precision is computed in
        float32. The pair does not hold the past before it: to go on exactly where a series ended use `step`.

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> layer = FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True)
        >>> out, (h, c) = layer(torch.randn(100, 8, 3))
        >>> out.shape
        torch.Size([100, 8, 16])
    """

    cell: ClassVar[Cell] = CELLS["lstm"]
    ordinary: ClassVar[type[nn.RNNBase]] = nn.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        alpha: float | Sequence[float] | Alpha = 0.5,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        memory: int | None = None,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            alpha=alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            memory=memory,
            manager=manager,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def from_torch(cls, module: nn.LSTM, **options: Any) -> Self:
        """Return the layer with the options, weights, device and dtype of torch's.

        Args:
            module: Torch's layer; its weights are copied.
            options: Keyword arguments of the layer; what is not given is torch's.

        Raises:
            TypeError: `module` is no `torch.nn.LSTM`.
            ValueError: An option is not what the weights are for, such as another `hidden_size`.
        """
        return cls._from_torch(module, options)

    def forward(
        self, input: Tensor | PackedSequence, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, Tensor]]:
        """Return the outputs of the last layer at all steps, and the last (h, c) of every layer and direction."""
        return self._forward(input, hx)

    def initial_state(
        self,
        shape: Sequence[int],
        *,
        hx: tuple[Tensor, Tensor] | None = None,
        horizon: int = HORIZON,
        device: torch.device | str | None = None,
    ) -> RecurrentState:
        """Return the state before the first sample, for `step`.

        It holds the weights of the present alpha, traced where alpha is learned and gradients are on.

        Args:
            shape: Of x without its time axis: (batch, input_size) or (input_size,).
            hx: (h, c) at the start, as in a call; None is 0.
            horizon: The longest series it will serve, where the whole past counts; a step costs in proportion to its
                logarithm.
            device: Where the samples will be; None is that of the weights.

        Raises:
            ValueError: The layer is bidirectional, or an argument is out of range.

        Examples:
            >>> layer = FractionalLSTM(3, 16)
            >>> state = layer.initial_state((8, 3))
            >>> y, state = layer.step(torch.randn(8, 3), state)
            >>> y.shape
            torch.Size([8, 16])
        """
        return self._initial_state("FractionalLSTM.initial_state", shape, hx, horizon, device)

    def step(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return the outputs of the next step and the state after it; `state` itself stays as it is.

        Fed one sample after another, the outputs are those of the whole series, to 1e-10 in float64. Time and memory
        of a step do not grow with the number of steps. Without `torch.no_grad` the graph does.

        Args:
            x: One time slice, [batch, input_size] or [input_size].
            state: From `initial_state` or the step before.

        Raises:
            ValueError: x has another shape or dtype, or the state has reached its horizon or is of another layer.
            TypeError: x is no tensor, or `state` no state.
        """
        return self._step("FractionalLSTM.step", x, state)

    def _input_bias(self, weights: dict[str, Tensor]) -> Tensor | None:
        return weights["bias_ih"] + weights["bias_hh"] if self.bias else None

    def _hidden_bias(self, weights: dict[str, Tensor]) -> Tensor | None:
        return None


class FractionalGRU(Recurrent):
    """`torch.nn.GRU` whose update gate mixes in a power-law average of all past outputs, not the last one.

        h_t = (1 - z_t) * n_t + z_t * m_t,
        m_t = sum over k >= 1 of a_k h_(t-k),    a_k = -w_k(alpha),

    with the weights of `FractionalLSTM`; the gates and n_t, which see h_(t-1), are torch's. At alpha = 1 it is
    `torch.nn.GRU`. The paper has no such cell: it is the same change to a cell that has no state beside its output.

    Args:
        input_size: Inputs.
        hidden_size: Units.
        num_layers: Layers, each on the outputs of the one before.
        bias: Whether gates have a bias.
        batch_first: Whether inputs and outputs are [batch, n, ...].
        dropout: Of the outputs of all layers but the last, in training.
        bidirectional: Whether a second set of units reads the series from its end.
        alpha: The order, one for all units of all layers and directions, or a list with one for each of `hidden_size`;
            or an `Alpha` or `ProbabilisticAlpha` of shape [] or [hidden_size], which then is the layer's `order`.
        learn_alpha: Whether alpha is a parameter, `order`; an `Alpha` always is one.
        bounds: Where a learned alpha stays, within (0, 1), which is the default.
        memory: The largest lag that counts, or None for all.
        manager: Who chooses how the past is added up; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha and its weights are computed in float64 whatever it is.

    Shape:
        As of `FractionalLSTM`, with h in place of the pair (h, c).

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> out, h = FractionalGRU(3, 16, alpha=0.6)(torch.randn(100, 8, 3))
        >>> h.shape
        torch.Size([1, 8, 16])
    """

    cell: ClassVar[Cell] = CELLS["gru"]
    ordinary: ClassVar[type[nn.RNNBase]] = nn.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        alpha: float | Sequence[float] | Alpha = 0.5,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        memory: int | None = None,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            "GRU",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            alpha=alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            memory=memory,
            manager=manager,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def from_torch(cls, module: nn.GRU, **options: Any) -> Self:
        """Return the layer with the options, weights, device and dtype of torch's.

        Args:
            module: Torch's layer; its weights are copied.
            options: Keyword arguments of the layer; what is not given is torch's.

        Raises:
            TypeError: `module` is no `torch.nn.GRU`.
            ValueError: An option is not what the weights are for, such as another `hidden_size`.
        """
        return cls._from_torch(module, options)

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Return the outputs of the last layer at all steps, and the last h of every layer and direction."""
        out, (h, _) = self._forward(input, _twice(hx))
        return out, h

    def initial_state(
        self,
        shape: Sequence[int],
        *,
        hx: Tensor | None = None,
        horizon: int = HORIZON,
        device: torch.device | str | None = None,
    ) -> RecurrentState:
        """Return the state before the first sample, for `step`; see `FractionalLSTM.initial_state`.

        Args:
            shape: Of x without its time axis: (batch, input_size) or (input_size,).
            hx: h at the start, as in a call; None is 0.
            horizon: The longest series it will serve, where the whole past counts.
            device: Where the samples will be; None is that of the weights.

        Raises:
            ValueError: The layer is bidirectional, or an argument is out of range.
        """
        return self._initial_state("FractionalGRU.initial_state", shape, _twice(hx), horizon, device)

    def step(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return the outputs of the next step and the state after it; see `FractionalLSTM.step`.

        Args:
            x: One time slice, [batch, input_size] or [input_size].
            state: From `initial_state` or the step before.

        Raises:
            ValueError: x has another shape or dtype, or the state has reached its horizon or is of another layer.
            TypeError: x is no tensor, or `state` no state.
        """
        return self._step("FractionalGRU.step", x, state)


def _twice(h: Tensor | None) -> Hidden | None:
    return None if h is None else (h, h)
