"""Layers that differentiate along time: the drop-in layer, linear, convolutions, the bank, random orders, streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.parity_cases import Arrays, ParityCase, parity

BATCH, N, FEATURES, OUT, KERNEL = 2, 11, 3, 2, 3


def draw(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    return lambda rng: {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def on_torch(name: str, arguments: tuple, options: dict[str, Any], named: Callable[[Arrays], Arrays]) -> Any:
    """Return the layer of that name as a function of its input and parameters."""

    def computed(given: Arrays) -> Any:
        import torch

        from hpfracc_nn import layers

        layer = getattr(layers, name)(*arguments, **options, dtype=given["x"].dtype)
        state = named(given)
        return torch.func.functional_call(layer, {k: v for k, v in state.items() if k != "x"}, (state["x"],))

    return computed


def on_jax(name: str, arguments: tuple, options: dict[str, Any]) -> Any:
    def computed(given: Arrays) -> Any:
        from hpfracc_nn.layers.flax import functional

        core = getattr(functional, name)(*arguments, **options)
        return core(tree_of(given), given["x"])

    return computed


def tree_of(given: Arrays) -> dict[str, Any]:
    """Return the parameters of a core: `raw` and `spread` are its order's."""
    order = {name: given[name] for name in ("raw", "spread") if name in given}
    rest = {name: given[name] for name in ("kernel", "bias") if name in given}
    return {**rest, "order": order} if order else rest


def drop_in(given: Arrays) -> dict[str, Any]:
    return {"x": given["x"], "order.raw": given["raw"]}


def linear(given: Arrays) -> dict[str, Any]:
    return {
        "x": given["x"],
        "weight": given["kernel"].T,
        "bias": given["bias"],
        "derivative.order.raw": given["raw"],
    }


def series(given: Arrays) -> dict[str, Any]:
    return {
        "x": given["x"].transpose(1, 2),
        "weight": given["kernel"].permute(2, 1, 0),
        "bias": given["bias"],
        "derivative.order.raw": given["raw"],
    }


def images(given: Arrays) -> dict[str, Any]:
    return {
        "x": given["x"].permute(0, 3, 1, 2),
        "weight": given["kernel"].permute(3, 2, 0, 1),
        "bias": given["bias"],
        "order.raw": given["raw"],
    }


def features_last(computed: Any) -> Any:
    return lambda given: computed(given).movedim(1, -1)


def layer_case(definition: str, slow: bool = True) -> ParityCase:
    options = {"learn_alpha": True, "channels": FEATURES, "dim": -2, "dt": 0.5}
    return ParityCase(
        f"FractionalLayer {definition}",
        draw(x=(BATCH, N, FEATURES), raw=(FEATURES,)),
        on_torch("FractionalLayer", (0.4, definition), options, drop_in),
        on_jax("FractionalLayer", (0.4, definition), options),
        slow=slow,
    )


def bank_case() -> ParityCase:
    """Orders on both sides of whole numbers: torch has a module for each stretch, JAX one array."""
    starts = (-0.4, 0.3, 1.2)
    options = {"bounds": (-1.0, 2.0), "dim": -2}

    def named(given: Arrays) -> dict[str, Any]:
        raw = given["raw"].reshape(2, 3)
        parts = {f"parts.{j}.raw": raw[:, j] for j in range(3)}
        return {"x": given["x"], **parts}

    return ParityCase(
        "FractionalDifference over whole numbers",
        draw(x=(BATCH, N, 2), raw=(6,)),
        on_torch("FractionalDifference", (2, 3), {**options, "init": starts}, named),
        on_jax("FractionalDifference", (2, 3), {**options, "start": starts}),
        slow=True,
    )


def stream_case() -> ParityCase:
    """JAX one sample at a time, torch all of them at once: analytic and starting columns are in it."""

    def streamed(given: Arrays) -> Any:
        import jax
        from jax import numpy as jnp

        from hpfracc_nn.layers.flax import functional

        core = functional.FractionalLayer(0.4, "riemann_liouville", learn_alpha=True, dt=0.5)
        params, x = tree_of(given), given["x"]
        state = core.initial_state(params, (BATCH, FEATURES), horizon=N)
        _, y = jax.lax.scan(lambda s, x_t: core.step(params, x_t, s)[::-1], state, jnp.moveaxis(x, 1, 0))
        return jnp.moveaxis(y, 0, 1)

    options = {"learn_alpha": True, "dim": -2, "dt": 0.5}
    return ParityCase(
        "FractionalLayer in steps",
        draw(x=(BATCH, N, FEATURES), raw=()),
        on_torch(
            "FractionalLayer", (0.4, "riemann_liouville"), options, lambda g: {"x": g["x"], "order.raw": g["raw"]}
        ),
        streamed,
        slow=True,
    )


def order_case() -> ParityCase:
    """An order alone, in real units."""

    def by_torch(given: Arrays) -> Any:
        import torch

        from hpfracc_nn import Alpha

        order = Alpha([0.4, 1.2], (-0.5, 1.5), dtype=given["raw"].dtype)
        return torch.func.functional_call(order, {"raw": given["raw"]}, ()).to(given["raw"].dtype)

    def by_jax(given: Arrays) -> Any:
        from hpfracc_nn.layers.flax.functional import Alpha

        return Alpha([0.4, 1.2], (-0.5, 1.5))(dict(given))

    return ParityCase("Alpha", draw(raw=(2,)), by_torch, by_jax, slow=True)


def law_case(distribution: str) -> ParityCase:
    """Mean, standard deviation and divergence of a random order."""

    def by_torch(given: Arrays) -> Any:
        import torch
        from torch import nn

        from hpfracc_nn import ProbabilisticAlpha

        class Moments(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.of = ProbabilisticAlpha([0.6, 0.5], distribution=distribution, dtype=given["raw"].dtype)

            def forward(self) -> Any:
                found = self.of.mean, self.of.std, self.of.kl()[None]
                return torch.cat(found).to(given["raw"].dtype)

        return torch.func.functional_call(Moments(), {"of.raw": given["raw"], "of.spread": given["spread"]}, ())

    def by_jax(given: Arrays) -> Any:
        from jax import numpy as jnp

        from hpfracc_nn.layers.flax.functional import ProbabilisticAlpha

        of = ProbabilisticAlpha([0.6, 0.5], distribution=distribution)
        params = dict(given)
        return jnp.concatenate([of.mean(params), of.std_of(params), of.kl(params)[None]])

    def near(rng: np.random.Generator) -> dict[str, np.ndarray]:
        spread = {"normal": -1.0, "beta": 2.0, "uniform": -1.0}[distribution]
        return {"raw": 0.3 * rng.standard_normal(2), "spread": spread + 0.3 * rng.standard_normal(2)}

    # The beta law's divergence cancels, lgamma and digamma of 10 against a result of 1; and its gradient needs the
    # trigamma function, which torch has with an error of 3e-9, six terms of a series begun at 6.
    return ParityCase(
        f"ProbabilisticAlpha {distribution}",
        near,
        by_torch,
        by_jax,
        tolerance={"float64": 1e-8, "float32": 3e-5} if distribution == "beta" else parity(),
        slow=True,
    )


LEARNED = {"learn_alpha": True}
ONE_EACH = {"alpha": [0.3, 0.5, 0.7], **LEARNED}
CASES = [
    layer_case("caputo", slow=False),
    layer_case("riemann_liouville"),
    layer_case("grunwald_letnikov"),
    layer_case("riemann_liouville_integral"),
    ParityCase(
        "FractionalLinear",
        draw(x=(BATCH, N, FEATURES), raw=(FEATURES,), kernel=(FEATURES, OUT), bias=(OUT,)),
        on_torch("FractionalLinear", (FEATURES, OUT), ONE_EACH, linear),
        on_jax("FractionalLinear", (FEATURES, OUT), ONE_EACH),
        slow=True,
    ),
    *[
        ParityCase(
            f"FractionalConv1d {theirs}",
            draw(x=(BATCH, N, FEATURES), raw=(FEATURES,), kernel=(KERNEL, FEATURES, OUT), bias=(OUT,)),
            features_last(
                on_torch("FractionalConv1d", (FEATURES, OUT, KERNEL), {"padding": theirs, **ONE_EACH}, series)
            ),
            on_jax("FractionalConv1d", (FEATURES, OUT, KERNEL), {"padding": ours, **ONE_EACH}),
            slow=True,
        )
        for theirs, ours in (("causal", "CAUSAL"), ("same", "SAME"))
    ],
    ParityCase(
        "FractionalConv2d",
        draw(x=(BATCH, 7, 6, FEATURES), raw=(2,), kernel=(KERNEL, KERNEL, FEATURES, OUT), bias=(OUT,)),
        features_last(
            on_torch(
                "FractionalConv2d",
                (FEATURES, OUT, KERNEL),
                {"padding": "same", "dims": (-2, -1), "alpha": (0.4, 0.8), "dt": (1.0, 0.5), **LEARNED},
                images,
            )
        ),
        on_jax(
            "FractionalConv2d",
            (FEATURES, OUT, KERNEL),
            {"dims": (-3, -2), "alpha": (0.4, 0.8), "dt": (1.0, 0.5), **LEARNED},
        ),
        slow=True,
    ),
    bank_case(),
    stream_case(),
    order_case(),
    *[law_case(distribution) for distribution in ("normal", "beta", "uniform")],
]
