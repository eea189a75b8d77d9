"""ARFIMA and the spectral layer: the same weights and inputs in both frameworks, gradients in all of them."""

import numpy as np

from tests.parity_cases import ParityCase


def rows(rng):
    return {
        "x": rng.standard_normal((1, 40, 2)),
        "mean": np.array(0.7),
        "ar": np.array([0.5, -0.3]),
        "raw": np.array(-0.4),
    }


def torch_errors(given, bounds):
    from torch.func import functional_call

    from hpfracc_nn.layers.torch import ARFIMA

    layer = ARFIMA(2, bounds=bounds, dim=-2, dtype=given["x"].dtype)
    parameters = {"mean": given["mean"], "ar": given["ar"], "difference.order.raw": given["raw"]}
    return functional_call(layer, parameters, (given["x"],))


def jax_errors(given, bounds):
    from hpfracc_nn.layers.flax import functional

    core = functional.ARFIMA(2, bounds=bounds)
    return core({"mean": given["mean"], "ar": given["ar"], "order": {"raw": given["raw"]}}, given["x"])


def torch_criterion(given):
    """What `ARFIMA.fit` makes least, as a likelihood: (n - 1) / 2 log(2 pi e Q / (n - 1))."""
    import math

    import torch

    from hpfracc_nn.layers.torch import ARFIMA

    n = len(given["series"])
    model = ARFIMA(2, alpha=0.3, dtype=given["series"].dtype)
    assert model.difference.order.bounds == (0, 1)

    def errors(x):
        parameters = {"mean": torch.zeros(1).to(x), "ar": given["ar"], "difference.order.raw": given["raw"]}
        return torch.func.functional_call(model, parameters, (x,))

    e, of_ones = errors(given["series"]), errors(torch.ones_like(given["series"]))
    size = of_ones.square().sum()
    total = (e - of_ones @ e / size * of_ones).square().sum() * size ** (1 / (n - 1))
    return (n - 1) / 2 * torch.log(2 * math.pi * math.e * total / (n - 1))


def jax_likelihood(given):
    from hpfracc_nn.layers.flax import functional

    core = functional.ARFIMA(2, alpha=0.3)
    params = {"mean": given["mean"], "ar": given["ar"], "order": {"raw": given["raw"]}}
    return core.nll(params, given["series"])


def series(rng):
    found = rows(rng)
    return {"series": 3 + found.pop("x")[0, :, 0], **found}


def torch_spectral(given, definition, options):
    from torch.func import functional_call

    from hpfracc_nn.layers.torch import SpectralFractional

    shape = {"channels": given["raw"].shape[0]} if given["raw"].ndim else {}
    layer = SpectralFractional(0.8, definition, learn_alpha=True, **shape, **options)
    return functional_call(layer, {"order.raw": given["raw"]}, (given["x"],))


def jax_spectral(given, definition, options):
    from hpfracc_nn.layers.flax import functional

    shape = {"channels": given["raw"].shape[0]} if given["raw"].ndim else {}
    core = functional.SpectralFractional(0.8, definition, learn_alpha=True, **shape, **options)
    return core({"order": {"raw": given["raw"]}}, given["x"])


def of_errors(name, bounds, slow, cancels=False):
    return ParityCase(
        f"ARFIMA {name}",
        rows,
        lambda given: torch_errors(given, bounds),
        lambda given: jax_errors(given, bounds),
        slow=slow,
        cancels=cancels,
    )


def of_spectral(name, definition, shape, orders, options, slow=True):
    return ParityCase(
        f"SpectralFractional {name}",
        lambda rng: {"x": rng.standard_normal(shape), "raw": rng.standard_normal(orders)},
        lambda given: torch_spectral(given, definition, options),
        lambda given: jax_spectral(given, definition, options),
        slow=slow,
    )


CASES = [
    of_errors("errors", None, True, cancels=True),  # 1.1e-6 of the mean's itself
    of_errors("errors, wide bounds", (-0.5, 1.0), True),
    ParityCase(
        "ARFIMA likelihood",
        series,
        torch_criterion,
        jax_likelihood,
        differentiable=("series", "ar", "raw"),
        slow=True,
    ),
    of_spectral("on a line", "fractional_laplacian", (2, 20, 3), (), {"dt": 0.3, "dim": -2}),
    of_spectral(
        "of channels in a plane", "fractional_laplacian", (2, 6, 5, 3), (3,), {"dt": (0.3, 0.5), "dim": (-3, -2)}
    ),
    of_spectral("in a box", "fractional_laplacian", (2, 4, 3, 6), (), {"dt": 0.5, "dim": (-3, -2, -1)}),
    of_spectral("of Riesz", "periodic_riesz", (2, 12, 3), (), {"dim": -2}),
    of_spectral("of Weyl", "periodic_weyl", (2, 12, 3), (3,), {"dim": -2}),
]
