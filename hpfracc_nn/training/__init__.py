"""Training: optimizers, losses, fits of fractional models, Hurst indices, the report of what ran where, baselines.

The names are loaded when they are first asked for. `AlphaLogger` and `BackendReport` need `hpfracc-nn[lightning]`,
`whittle` and `structure_function` nothing, all others `hpfracc-nn[torch]`.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.training.fit import Fit as Fit
    from hpfracc_nn.training.fit import StochasticFit as StochasticFit
    from hpfracc_nn.training.hurst import HurstEstimate as HurstEstimate
    from hpfracc_nn.training.hurst import StructureFunction as StructureFunction
    from hpfracc_nn.training.hurst import structure_function as structure_function
    from hpfracc_nn.training.hurst import whittle as whittle
    from hpfracc_nn.training.torch.alpha_logger import AlphaLogger as AlphaLogger
    from hpfracc_nn.training.torch.backend_report import BackendReport as BackendReport
    from hpfracc_nn.training.torch.batch_size import suggest_batch_size as suggest_batch_size
    from hpfracc_nn.training.torch.fit_fde import fit_fde as fit_fde
    from hpfracc_nn.training.torch.fit_fsde import fit_fsde as fit_fsde
    from hpfracc_nn.training.torch.gradient_variance import GradientVariance as GradientVariance
    from hpfracc_nn.training.torch.losses import energy_score as energy_score
    from hpfracc_nn.training.torch.losses import moment_loss as moment_loss
    from hpfracc_nn.training.torch.losses import trajectory_loss as trajectory_loss
    from hpfracc_nn.training.torch.losses import variogram_loss as variogram_loss
    from hpfracc_nn.training.torch.optimizers import AlphaSchedule as AlphaSchedule
    from hpfracc_nn.training.torch.optimizers import FractionalAdam as FractionalAdam
    from hpfracc_nn.training.torch.optimizers import FractionalAdamW as FractionalAdamW
    from hpfracc_nn.training.torch.optimizers import FractionalRMSprop as FractionalRMSprop
    from hpfracc_nn.training.torch.optimizers import FractionalSGD as FractionalSGD

else:
    __getattr__, __dir__, __all__ = lazy.attach(
        __name__, extras={"AlphaLogger": "lightning", "BackendReport": "lightning"}
    )
