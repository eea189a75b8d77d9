"""The names of the package for JAX: operators, Flax modules, optax transformations, solvers.

    import hpfracc_nn.jax as fjx

Operators and definitions are those of `hpfracc_nn`, which take JAX arrays too. Layers are Flax modules: those of
`fjx.nnx` stand here too, those of linen in `fjx.linen`, the pure cores of both in `fjx.functional`. Names are loaded
when they are first asked for, PyTorch never. Definitions are pytrees from this import on.
"""

from typing import TYPE_CHECKING

import hpfracc_nn.fractional.jax.pytrees  # noqa: F401
from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.fractional import *  # noqa: F403
    from hpfracc_nn.fractional.jax.calibration import calibrate as calibrate
    from hpfracc_nn.fractional.jax.lengths import pad_to_bucket as pad_to_bucket
    from hpfracc_nn.fractional.jax.questions import choose as choose, workload as workload  # type: ignore[assignment]
    from hpfracc_nn.layers.flax import functional as functional, linen as linen, nnx as nnx
    from hpfracc_nn.layers.flax.functional import (
        arfima_errors as arfima_errors,
        arfima_forecast as arfima_forecast,
        arfima_nll as arfima_nll,
        param_labels as param_labels,
    )
    from hpfracc_nn.layers.flax.nnx import *  # noqa: F403
    from hpfracc_nn.selection import BackendManager as BackendManager, configure as configure
    from hpfracc_nn.solvers import (
        BDF2 as BDF2,
        SDE as SDE,
        Exponentials as Exponentials,
        FractionalBrownian as FractionalBrownian,
        Graded as Graded,
        Newton as Newton,
        Trapezoid as Trapezoid,
        Window as Window,
    )
    from hpfracc_nn.solvers.jax import *  # noqa: F403
    from hpfracc_nn.training.hurst import structure_function as structure_function, whittle as whittle
    from hpfracc_nn.training.jax.losses import (
        energy_score as energy_score,
        moment_loss as moment_loss,
        trajectory_loss as trajectory_loss,
        variogram_loss as variogram_loss,
    )
    from hpfracc_nn.training.jax.optimizers import *  # noqa: F403

__getattr__, __dir__, __all__ = lazy.attach(__name__)
