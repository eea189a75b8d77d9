"""What the report runs: a script, with which cells, which tables it writes, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One process.

    Args:
        script: Its name, without ".py".
        tables: Names of the tables that it writes.
        budget: Seconds after which it is ended; about three times what it takes on two idle cores.
        arguments: Of the script.
        needs: Modules without which it is skipped.
    """

    script: str
    tables: tuple[str, ...]
    budget: float
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The command, as a user writes it."""
        return " ".join([f"{self.script}.py", *self.arguments])


REPORTED = ("--cells", "report")

# In this order: those with most promises first, because no new one begins when the time of the report is spent.
RUNS = (
    Run("product", ("floors",), 420, ("--group", "floors")),
    Run("sde", ("sde-classical", "sde-volterra", "sde-gradient", "sde-memory"), 420, REPORTED),
    Run(
        "solvers",
        ("solvers-loop", "solvers-steps", "solvers-peers", "solvers-adjoint", "solvers-schemes"),
        200,
        REPORTED,
    ),
    Run("estimate", ("estimate-float32-1",), 180),
    Run("dispatch", ("dispatch",), 60),
    Run("imports", ("imports",), 60),
    Run("selection_hot_path", ("selection-hot-path",), 90),
    Run("selection_live", ("selection-live",), 180),
    Run("selection", ("selection",), 300, REPORTED),
    Run("telemetry", ("telemetry",), 90, needs=("lightning", "opentelemetry.sdk", "tensorboard")),
    Run("definitions", ("definitions",), 90),
    Run("layers", ("layers_recurrent", "layers_bank", "layers_attention"), 240, REPORTED),
    Run("optimizers", ("optimizers-cost",), 120, ("--only", "cost")),
    Run("noise", ("noise-fractional", "noise-numbers"), 90),
    Run("special", ("special-mittag-leffler", "special-fractional-fourier"), 120, REPORTED),
    Run("differencing", ("differencing",), 60),
    Run("weights", ("weights",), 90),
    Run("threads", ("python-threads",), 90),
    Run("product", ("peers", "loop"), 120, ("--group", "peers")),
    Run("jax_operators", ("jax_operators",), 120, needs=("jax",)),
    Run(
        "jax_sde",
        ("jax-sde-classical", "jax-sde-volterra", "jax-sde-outputs", "jax-sde-noise"),
        300,
        REPORTED,
        needs=("jax",),
    ),
    Run(
        "product",
        ("forward", "backward", "layouts", "threads"),
        300,
        ("--group", "forward", "--group", "backward", "--group", "layouts", "--group", "threads", *REPORTED),
    ),
    Run("nonuniform", ("nonuniform",), 90, REPORTED),
    Run("jax_solvers", ("jax-solvers",), 120, REPORTED, needs=("jax",)),
    Run("jax_layers", ("jax_layers",), 120, REPORTED, needs=("flax", "jax")),
    Run("optax_steps", ("optax-steps",), 120, REPORTED, needs=("jax", "optax")),
    Run("gpu", ("gpu-forward", "gpu-gradient", "gpu-plan", "gpu-memory", "gpu-host"), 300, needs=("a CUDA device",)),
)
