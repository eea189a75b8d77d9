"""Ordinary and stochastic equations as layers: the sums of their explicit schemes, written out."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.layers.torch import FDEBlock, FSDEBlock
from tests.layer_cases import LayerCase
from tests.sde_cases import Given

STEPS, END, WIDTH = 7, 1.5, 3
H = END / STEPS


class Field(nn.Module):
    """tanh(W z + b) cos(t), or that plus 1."""

    def __init__(self, width: int = WIDTH, *, plus: float = 0.0, device: Any = None, dtype: Any = None):
        super().__init__()
        self.net = nn.Linear(width, width, device=device, dtype=dtype)
        self.plus = plus

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(self.net(z)) * torch.cos(t) + self.plus


PARAMETER: Any = nn.Parameter(torch.tensor(0.7))
NONE = torch.ones(0, 3)


class Wider(nn.Module):
    """A right-hand side of another shape."""

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return torch.cat([z, z], -1)


class Block(FDEBlock):
    """The block, with a right-hand side of its own for every instance."""

    def __init__(self, *, device: Any = None, dtype: Any = None, **options: Any):
        super().__init__(Field(device=device, dtype=dtype), device=device, dtype=dtype, **options)


NOISE = Given(torch.as_tensor(np.random.default_rng(5).standard_normal((STEPS, 2, 2, WIDTH)) * math.sqrt(H)))


class StochasticBlock(FSDEBlock):
    """The block, with coefficients of its own and increments that are given, the same in every precision."""

    def __init__(self, *, device: Any = None, dtype: Any = None, **options: Any):
        made = {"device": device, "dtype": dtype}
        super().__init__(Field(**made), Field(plus=1.5, **made), noise=NOISE, **made, **options)


def numpy_field(field: Any) -> Callable[[float, np.ndarray], np.ndarray]:
    weight, bias = (each.detach().double().numpy() for each in (field.net.weight, field.net.bias))
    return lambda t, z: np.tanh(z @ weight.T + bias) * math.cos(t) + field.plus


def rectangle(f: Callable[[float, np.ndarray], np.ndarray], x: np.ndarray, alpha: Any, steps: int, h: float) -> Any:
    """Return x + h**alpha sum of b_(n-1-j) f(j h, z_j), b_k = ((k+1)**alpha - k**alpha) / Gamma(1+alpha)."""
    alphas = np.broadcast_to(np.asarray(alpha, dtype=np.float64), x.shape[-1:])
    gammas = np.array([math.gamma(1 + a) for a in alphas])
    states = [x]
    for n in range(1, steps + 1):
        z = x.copy()
        for j in range(n):
            lag = n - 1 - j
            z = z + h**alphas * ((lag + 1) ** alphas - lag**alphas) / gammas * f(j * h, states[j])
        states.append(z)
    return states[-1]


def corrected(f: Callable[[float, np.ndarray], np.ndarray], x: np.ndarray, a: float, steps: int, h: float) -> Any:
    """Return the last state of the fractional Adams method as Diethelm, Ford & Freed (2004) write it."""
    states = [x]
    for k in range(steps):
        predicted, known = x.copy(), x.copy()
        for j in range(k + 1):
            value = f(j * h, states[j])
            predicted = predicted + h**a / math.gamma(1 + a) * ((k + 1 - j) ** a - (k - j) ** a) * value
            if j == 0:
                weight = k ** (a + 1) - (k - a) * (k + 1) ** a
            else:
                weight = (k - j + 2) ** (a + 1) + (k - j) ** (a + 1) - 2 * (k - j + 1) ** (a + 1)
            known = known + h**a / math.gamma(a + 2) * weight * value
        states.append(known + h**a / math.gamma(a + 2) * f((k + 1) * h, predicted))
    return states[-1]


def of_block(layer: Any, x: np.ndarray) -> Any:
    return rectangle(numpy_field(layer.f), x, layer.alpha.detach().numpy(), STEPS, H)


def of_corrected(layer: Any, x: np.ndarray) -> Any:
    return corrected(numpy_field(layer.f), x, layer.alpha.item(), STEPS, H)


def of_stochastic(layer: Any, x: np.ndarray) -> Any:
    """Return x + the sums over cells of the memory function's mean, and in the newest what is left of its integral."""
    a, values = layer.alpha.item(), NOISE.values.numpy()
    drift, diffusion = numpy_field(layer.equation.drift), numpy_field(layer.equation.diffusion)
    deviation = (1 - a) * H ** (a - 0.5) / (math.gamma(1 + a) * math.sqrt(2 * a - 1))
    states = [x]
    for n in range(1, STEPS + 1):
        z = x.copy()
        for j in range(n):
            mean = H ** (a - 1) * ((n - j) ** a - (n - j - 1) ** a) / math.gamma(1 + a)
            z = z + mean * (drift(j * H, states[j]) * H + diffusion(j * H, states[j]) * values[j, 0])
        states.append(z + diffusion((n - 1) * H, states[-1]) * deviation * values[n - 1, 1] / math.sqrt(H))
    return states[-1]


def residual_network(layer: Any) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for n in range(STEPS):
            x = x + H * layer.f(torch.tensor(n * H, dtype=x.dtype), x)
        return x

    return run


def inputs(draw: Any, batch: int) -> tuple[Tensor, ...]:
    return (draw(batch, WIDTH),)


OPTIONS = {"t1": END, "n_steps": STEPS}
CASES = [
    LayerCase(
        Block,
        (),
        inputs,
        of_block,
        OPTIONS,
        alphas=([0.3, 0.5, 0.8], 0.6, [0.9, 0.2, 0.4]),
        limit=(1.0, residual_network),
        second=False,  # the exact adjoint has first gradients
        refusals=(
            ("alpha", lambda: FDEBlock(Field(), 1.2), ValueError, "0 < alpha <= 1.*NeuralFDE"),
            ("bounds", lambda: FDEBlock(Field(), learn_alpha=True, bounds=(0.2, 1.5)), ValueError, "bounds"),
            ("end", lambda: FDEBlock(Field(), t1=0.0), ValueError, "t1"),
            ("steps", lambda: FDEBlock(Field(), n_steps=0), ValueError, "n_steps"),
            ("integers", lambda: FDEBlock(Field())(torch.ones(2, 3, dtype=torch.long)), TypeError, "floating"),
            ("array", lambda: FDEBlock(Field())(np.ones((2, 3))), TypeError, "as_tensor"),
            ("shape", lambda: FDEBlock(Wider())(torch.ones(2, 3)), ValueError, "shape"),
            ("shape of none", lambda: FDEBlock(Wider())(torch.ones(0, 3)), ValueError, r"FDEBlock\(f\).*\(0, 6\)"),
            ("meta", lambda: FDEBlock(Wider())(torch.ones(2, 3, device="meta")), ValueError, r"FDEBlock\(f\)"),
            ("parameter", lambda: FDEBlock(Field(), PARAMETER), TypeError, "alpha of type Parameter.*learn_alpha"),
        ),
    ),
    LayerCase(Block, (), inputs, of_corrected, {**OPTIONS, "scheme": "predictor_corrector"}, "corrected", second=False),
    LayerCase(
        StochasticBlock,
        (),
        inputs,
        of_stochastic,
        OPTIONS,
        alphas=(0.6, 0.75, 0.9),
        is_random=True,
        second=False,
        refusals=(
            ("alpha", lambda: FSDEBlock(Field(), Field(), alpha=0.4), ValueError, "alpha=0.4"),
            ("at 1", lambda: FSDEBlock(Field(), Field(), learn_alpha=True), ValueError, "FSDEBlock.*start inside"),
            ("parameter", lambda: FSDEBlock(Field(), Field(), alpha=PARAMETER), TypeError, "FSDEBlock.*learn_alpha"),
            ("low", lambda: FSDEBlock(Field(), Field(), alpha=Alpha(0.4, (0, 1))), ValueError, "FSDEBlock.*bounds"),
            ("drift", lambda: FSDEBlock(Wider(), Field())(NONE), ValueError, r"FSDEBlock\(drift\).*\(0, 6\)"),
            ("diffusion", lambda: FSDEBlock(Field(), Wider())(NONE), ValueError, r"diffusion.*needs shape \(0, 3\)"),
            ("integers", lambda: FSDEBlock(Field(), Field())(torch.ones(2, 3).long()), TypeError, "floating"),
        ),
    ),
]
