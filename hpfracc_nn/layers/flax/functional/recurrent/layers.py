"""LSTM and GRU whose cells remember by a power law, for Flax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from hpfracc_nn.layers.flax.functional.core import BIAS_INIT, Initializer, kernel_init
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.layers.flax.functional.recurrent.base import Recurrent, orthogonal_init


@dataclass(frozen=True)
class FractionalLSTM(Recurrent):
    """Flax's LSTM whose forget gate looks at a power-law average of all past cell states, not at the last one.

        c_t = f_t * m_t + i_t * tanh(...),
        m_t = sum over k >= 1 of a_k c_(t-k),    a_k = -w_k(alpha),

    where w_k are Grünwald's weights, `(1 - z)**alpha = sum of w_k z**k`; gates, candidate and output
    `h_t = o_t * tanh(c_t)` are those of `flax.nnx.OptimizedLSTMCell`. For 0 < alpha <= 1 no a_k is negative and they
    add up to 1: m is an average, in which lag k counts about `alpha k**(-1-alpha) / Gamma(1 - alpha)`. At alpha = 1 it
    is c_(t-1), and the layer is Flax's. c_0 is the one state before the series; what would be before it is 0.

    With `memory=None` the whole past counts, in time O(n) and O(1) memory per unit of a state: by exponentials whose
    error is below 1e-7 of a weight in float32 and 1e-11 in float64. With `memory=K` the sum ends at lag K, where it is
    exact. There is one algorithm, a scan over blocks of steps, and nothing to choose for the BackendManager.

    Parameters, for each layer and direction under "layer_0", "layer_0_reverse", "layer_1", ..., with
    gates in the order i, f, g, o:

        dense_i  kernel [inputs, 4 * hidden_features]
        dense_h  kernel [outputs, 4 * hidden_features], bias [4 * hidden_features]
        projection  kernel [hidden_features, proj_size], where there is one

    and a learned order as {"order": {"raw": ...}}. dense_i and dense_h are those of `flax.nnx.OptimizedLSTMCell`.

    Attributes:
        in_features: Inputs.
        hidden_features: Units.
        num_layers: Layers, each on the outputs of the one before.
        use_bias: Whether gates have a bias.
        dropout_rate: Of the outputs of all layers but the last, where there is randomness for it.
        bidirectional: Whether a second set of units reads the series from its end.
        proj_size: Outputs per direction, where they are a projection of the units; 0 is none.
        alpha: The order, one for all units of all layers and directions, or a list with one for each unit; or an
            `Alpha` of shape [] or [hidden_features], which then is the layer's order.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays, within (0, 1), which is the default.
        memory: The largest lag that counts, or None for all.
        dim: The time axis.
        dtype: What is computed in, None for that of inputs and parameters; half precision is computed in float32 and
            cast at the end. Weights of alpha are computed in float64 whatever it is.
        kernel_init: Of the inputs' kernels.
        recurrent_kernel_init: Of the outputs' kernels.
        bias_init: Of the biases.

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> core = fjx.functional.FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True)
        >>> params = core.init(jax.random.key(0))
        >>> core(params, jnp.ones((8, 100, 3))).shape
        (8, 100, 16)
    """

    in_features: int
    hidden_features: int
    num_layers: int = 1
    use_bias: bool = True
    dropout_rate: float = 0.0
    bidirectional: bool = False
    proj_size: int = 0
    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha = 0.5
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    memory: int | None = None
    dim: int = -2
    dtype: Any = None
    kernel_init: Initializer = kernel_init
    recurrent_kernel_init: Initializer = orthogonal_init
    bias_init: Initializer = BIAS_INIT

    kind: ClassVar[str] = "lstm"


@dataclass(frozen=True)
class FractionalGRU(Recurrent):
    """Flax's GRU whose update gate mixes in a power-law average of all past outputs, not the last one.

        h_t = (1 - z_t) * n_t + z_t * m_t,
        m_t = sum over k >= 1 of a_k h_(t-k),    a_k = -w_k(alpha),

    with the weights of `FractionalLSTM`; the gates and n_t, which see h_(t-1), are those of `flax.linen.GRUCell`. At
    alpha = 1 it is Flax's layer. The paper has no such cell: it is the same change to a cell that has no state beside
    its output.

    Parameters, for each layer and direction under "layer_0", "layer_0_reverse", "layer_1", ..., with
    gates in the order r, z, n:

        dense_i  kernel [inputs, 3 * hidden_features], bias [3 * hidden_features]
        dense_h  kernel [hidden_features, 3 * hidden_features], bias [hidden_features], of n

    and a learned order as {"order": {"raw": ...}}. `flax.nnx.GRUCell` is the same without the bias of dense_h.

    Attributes:
        in_features: As in `FractionalLSTM`, as are all others.
        hidden_features: See there.
        num_layers: See there.
        use_bias: See there.
        dropout_rate: See there.
        bidirectional: See there.
        alpha: See there.
        learn_alpha: See there.
        bounds: See there.
        memory: See there.
        dim: See there.
        dtype: See there.
        kernel_init: See there.
        recurrent_kernel_init: See there.
        bias_init: See there.

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> core = fjx.functional.FractionalGRU(3, 16, alpha=0.6)
        >>> core(core.init(jax.random.key(0)), jnp.ones((8, 100, 3))).shape
        (8, 100, 16)
    """

    in_features: int
    hidden_features: int
    num_layers: int = 1
    use_bias: bool = True
    dropout_rate: float = 0.0
    bidirectional: bool = False
    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha = 0.5
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    memory: int | None = None
    dim: int = -2
    dtype: Any = None
    kernel_init: Initializer = kernel_init
    recurrent_kernel_init: Initializer = orthogonal_init
    bias_init: Initializer = BIAS_INIT

    kind: ClassVar[str] = "gru"
