"""The reference problems of the solvers: right-hand sides in torch, values from the reference file."""

import json
import math
import pathlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from hpfracc_nn.solvers.torch import MultiTerm

FILE = pathlib.Path(__file__).parent / "reference" / "solvers.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text("utf-8"))["cases"]}


@dataclass(frozen=True)
class Problem:
    """One initial value problem with known values.

    Attributes:
        f: The right-hand side.
        y0: The state at 0.
        alpha: The order, or those of the entries.
        dy0: The derivative at 0, or None.
        end: Up to where it is solved.
        points: Where values are known.
        values: There, [points, entries], of the entries `known`.
        known: Which entries.
        tolerance: Of an error, absolute.
        lipschitz: Size of the Jacobian, about.
    """

    f: Callable
    y0: torch.Tensor
    alpha: float | torch.Tensor
    end: float
    points: torch.Tensor
    values: torch.Tensor
    dy0: torch.Tensor | None = None
    known: tuple[int, ...] = (0,)
    tolerance: float = 1e-6

    def error(self, ys: torch.Tensor) -> torch.Tensor:
        """Return the largest error at each point of solutions there, [points, entries]."""
        return (ys[:, self.known] - self.values).abs().amax(-1)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gamma(x: float) -> float:
    return math.gamma(x)


def diethelm(a: float) -> Callable:
    """Diethelm, Ford & Freed (2004), section 5; y is t**8 - 3 t**(4 + a/2) + 9/4 t**a."""

    def f(t, y):
        forcing = (
            40320 / gamma(9 - a) * t ** (8 - a)
            - 3 * gamma(5 + a / 2) / gamma(5 - a / 2) * t ** (4 - a / 2)
            + 9 / 4 * gamma(a + 1)
            + (1.5 * t ** (a / 2) - t**4) ** 3
        )
        return forcing - y.abs() ** 1.5

    return f


def garrappa(a: float) -> Callable:
    return lambda t, y: t**2 - y + 2 * t ** (2 - a) / gamma(3 - a)


def li(t, y):
    a = 0.5
    forcing = 120 / gamma(6 - a) * t ** (5 - a) - 72 / gamma(5 - a) * t ** (4 - a) + 12 / gamma(4 - a) * t ** (3 - a)
    return forcing - y**2 + (t**5 - 3 * t**4 + 2 * t**3) ** 2


def lorenz(t, y):
    a, b, c = y.unbind(-1)
    return torch.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], -1)


def brusselator(t, y):
    a, b = y.unbind(-1)
    return torch.stack([1 - 5 * a + a**2 * b, 4 * a - a**2 * b], -1)


def lotka_volterra(t, y):
    a, b = y.unbind(-1)
    return torch.stack([a * (1 - 0.5 * b), b * (-0.75 + 0.25 * a)], -1)


LINEAR = tensor(-0.5, -2, 2, -0.5).view(2, 2)

RIGHT_HAND_SIDES = {
    "fde_relax_a05": lambda t, y: -y,
    "fde_relax_a08": lambda t, y: -y,
    "fde_relax_stiff_a07": lambda t, y: -10 * y,
    "fde_osc_a15": lambda t, y: -y,
    "fde_step_a05": lambda t, y: 1 - y,
    "fde_growth_a06": lambda t, y: y,
    "fde_diethelm2004_a025": diethelm(0.25),
    "fde_diethelm2004_a09": diethelm(0.9),
    "fde_garrappa2009_a05": garrappa(0.5),
    "fde_garrappa2009_a08": garrappa(0.8),
    "fde_li2015_a05": li,
    "fde_lin_system_a07_y1": lambda t, y: y @ LINEAR.T,
    "fde_riccati_a05": lambda t, y: 1 - y**2,
    "fde_system_riccati_a08_long": lambda t, y: 1 - y**2,
    "fde_system_brusselator_a08_mu4": brusselator,
    "fde_system_lotka_volterra_a09": lotka_volterra,
    "fde_system_lorenz_a099": lorenz,
    "fde_system_sinus_forced_a05": lambda t, y: -torch.sin(y) + torch.cos(t),
}
STIFF = {"fde_relax_stiff_a07"}


def problem(name: str) -> Problem:
    """Return a reference problem by its id."""
    case = CASES[name]
    common = {
        "end": float(case["interval"][1]),
        "points": tensor(*case["points"]),
        "tolerance": max(case.get("tolerance", 1e-6), 1e-9),
    }
    if name.startswith("bagley_torvik"):
        return Problem(**bagley_torvik(case), **common)
    values = [[float(each) for each in (value if isinstance(value, list) else [value])] for value in case["values"]]
    if not isinstance(case["values"][0], list):
        known: tuple[int, ...] = (case.get("component", 0),)
        y0 = case.get("y0", [1.0, 0.0])
    else:
        known, y0 = tuple(range(len(values[0]))), case["y0"]
    alpha, slope = case["alpha"], None
    if alpha > 1:
        y0, slope = y0[:1], tensor(y0[1])
    return Problem(
        RIGHT_HAND_SIDES[name],
        tensor(*y0),
        alpha,
        values=torch.tensor(values, dtype=torch.float64),
        dy0=slope,
        known=known,
        **common,
    )


def bagley_torvik(case: dict) -> dict:
    if case["id"] == "bagley_torvik_1pt":
        equation = MultiTerm({2: 1.0, 1.5: 1.0, 0: 1.0}, lambda t, y: 1 + t + 0 * y)
        start = equation.state(tensor(1), tensor(1))
    else:
        equation = MultiTerm({2: 1.0, 1.5: 0.5, 0: 0.5}, lambda t, y: 8 + 0 * y)
        start = equation.state(tensor(0), tensor(0))
    values = torch.tensor([[float(value)] for value in case["values"]], dtype=torch.float64)
    flat = start.reshape(-1)

    def f(t, x):
        return equation(t, x[None]).reshape(-1)

    return {"f": f, "y0": flat, "alpha": equation.alpha, "values": values}


class Counted(torch.autograd.Function):
    """The identity, which counts how many of its nodes are alive whenever a gradient passes."""

    nodes: ClassVar[weakref.WeakSet] = weakref.WeakSet()
    alive: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x):
        Counted.nodes.add(ctx)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        Counted.alive.append(len(Counted.nodes))
        return g
