"""Analysis of a backend manager's choices of kernels: data frames, plots, and one page with all of them.

All of them are made from records that the manager keeps in any case. pandas (`hpfracc-nn[data]`) is loaded for data
frames, matplotlib (`hpfracc-nn[plot]`) for plots and pages, each when it is first needed.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.analytics.figures import choice_map as choice_map
    from hpfracc_nn.analytics.figures import predicted_against_measured as predicted_against_measured
    from hpfracc_nn.analytics.figures import shares_over_time as shares_over_time
    from hpfracc_nn.analytics.figures import timeline as timeline
    from hpfracc_nn.analytics.history import History as History
    from hpfracc_nn.analytics.history import Use as Use
    from hpfracc_nn.analytics.page import report as report
    from hpfracc_nn.analytics.tables import errors as errors
    from hpfracc_nn.analytics.tables import events as events
    from hpfracc_nn.analytics.tables import performance as performance
    from hpfracc_nn.analytics.tables import usage as usage

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
