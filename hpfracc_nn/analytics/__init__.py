"""What a manager's choices amounted to: summaries as data frames, plots, and one page with all of them.

All of it is made from what the manager keeps in any case. pandas (`hpfracc-nn[data]`) is loaded for data frames,
matplotlib (`hpfracc-nn[plot]`) for plots and pages, each when it is first needed.
"""

from hpfracc_nn.analytics.figures import choice_map, predicted_against_measured, shares_over_time, timeline
from hpfracc_nn.analytics.frames import errors, events, performance, usage
from hpfracc_nn.analytics.history import History, Use
from hpfracc_nn.analytics.page import report

__all__ = [
    "History",
    "Use",
    "choice_map",
    "errors",
    "events",
    "performance",
    "predicted_against_measured",
    "report",
    "shares_over_time",
    "timeline",
    "usage",
]
