"""The names of the package for JAX: operators, Flax modules, optax transformations, solvers.

    import hpfracc_nn.jax as fjx

Operators and definitions are those of `hpfracc_nn`, which take JAX arrays too. Layers are Flax modules: those of
`fjx.nnx` are names of this module too, those of linen are in `fjx.linen`, and the pure functions of both in
`fjx.functional`. Names are loaded when they are first used, PyTorch never. Once this module is imported, definitions
are pytrees.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.fractional.jax.planning import calibrate as calibrate
    from hpfracc_nn.fractional.jax.planning import choose as choose
    from hpfracc_nn.fractional.jax.planning import workload as workload

    # isort: split
    from hpfracc_nn.fractional import *  # type: ignore[assignment]  # noqa: F403
    from hpfracc_nn.fractional.jax.arrays import pad_to_bucket as pad_to_bucket
    from hpfracc_nn.jax import distributed as distributed
    from hpfracc_nn.layers.flax import functional as functional
    from hpfracc_nn.layers.flax import linen as linen
    from hpfracc_nn.layers.flax import nnx as nnx
    from hpfracc_nn.layers.flax.functional import arfima_errors as arfima_errors
    from hpfracc_nn.layers.flax.functional import arfima_forecast as arfima_forecast
    from hpfracc_nn.layers.flax.functional import arfima_nll as arfima_nll
    from hpfracc_nn.layers.flax.functional import param_labels as param_labels
    from hpfracc_nn.layers.flax.nnx import *  # noqa: F403
    from hpfracc_nn.selection import BackendManager as BackendManager
    from hpfracc_nn.selection import configure as configure
    from hpfracc_nn.solvers import BDF2 as BDF2
    from hpfracc_nn.solvers import SDE as SDE
    from hpfracc_nn.solvers import Collocation as Collocation
    from hpfracc_nn.solvers import Exponentials as Exponentials
    from hpfracc_nn.solvers import FractionalBrownian as FractionalBrownian
    from hpfracc_nn.solvers import Graded as Graded
    from hpfracc_nn.solvers import Newton as Newton
    from hpfracc_nn.solvers import Points as Points
    from hpfracc_nn.solvers import Trapezoid as Trapezoid
    from hpfracc_nn.solvers import Window as Window
    from hpfracc_nn.solvers.jax import *  # noqa: F403
    from hpfracc_nn.training.hurst import structure_function as structure_function
    from hpfracc_nn.training.hurst import whittle as whittle
    from hpfracc_nn.training.jax.fit_fde import fit_fde as fit_fde
    from hpfracc_nn.training.jax.losses import energy_score as energy_score
    from hpfracc_nn.training.jax.losses import moment_loss as moment_loss
    from hpfracc_nn.training.jax.losses import trajectory_loss as trajectory_loss
    from hpfracc_nn.training.jax.losses import variogram_loss as variogram_loss
    from hpfracc_nn.training.jax.optimizers import *  # noqa: F403

else:
    lazy.required("hpfracc_nn.fractional.jax.definitions", "hpfracc_nn.jax: needs")  # makes pytrees of definitions
    __getattr__, __dir__, __all__ = lazy.attach(__name__, renamed={"Multiplier": "FourierMultiplier"})
