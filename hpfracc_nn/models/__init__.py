"""Models by name, of rheology and of impedance, and their fits to data.

The names below are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.models import impedance as impedance
    from hpfracc_nn.models import rheology as rheology
    from hpfracc_nn.models.comparison import Comparison as Comparison
    from hpfracc_nn.models.comparison import Row as Row
    from hpfracc_nn.models.comparison import compare as compare
    from hpfracc_nn.models.estimation import ModelFit as ModelFit
    from hpfracc_nn.models.estimation import Prediction as Prediction
    from hpfracc_nn.models.estimation import fit as fit
    from hpfracc_nn.models.experiments import Experiment as Experiment
    from hpfracc_nn.models.expressions import parse as parse
    from hpfracc_nn.models.impedance import KramersKronig as KramersKronig
    from hpfracc_nn.models.impedance import kramers_kronig as kramers_kronig
    from hpfracc_nn.models.model import Model as Model

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
