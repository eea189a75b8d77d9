"""The choice of the kernel that runs a workload; it knows the kernels only by what they register."""

import logging

from hpfracc_nn.errors import made_printable
from hpfracc_nn.selection.fallback import Work, carried_out
from hpfracc_nn.selection.learning.model import Prediction
from hpfracc_nn.selection.learning.wisdom import Timing, Wisdom
from hpfracc_nn.selection.learning.wisdom_file import WisdomFile
from hpfracc_nn.selection.machine import CostModel, Machine, Place, this_machine
from hpfracc_nn.selection.manager import (
    BackendManager,
    choose,
    configure,
    default_manager,
    given_manager,
    is_process_wide,
    report,
)
from hpfracc_nn.selection.observe.advice import Share
from hpfracc_nn.selection.observe.telemetry import Telemetry, enable_otlp
from hpfracc_nn.selection.plan import Plan, Stopwatch
from hpfracc_nn.selection.quarantine import Doubt, WrongResult
from hpfracc_nn.selection.recorder import ReportRow
from hpfracc_nn.selection.registry import (
    ALGORITHMS,
    BACKENDS,
    Compilation,
    Kernel,
    Operation,
    Probe,
    algorithms,
    ask_again_after_fork,
    backends,
    kernels,
    probe,
    register,
    register_marker,
    register_operation,
    register_probe,
    register_rehearsal,
    unregister,
    unregister_marker,
    unregister_operation,
    unregister_probe,
    unregister_rehearsal,
)
from hpfracc_nn.selection.settings import Settings, from_environment
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Cost, Direction, Measurement, Rates, Workload

logging.getLogger("hpfracc_nn.selection").addFilter(made_printable)

__all__ = [
    "ALGORITHMS",
    "BACKENDS",
    "BackendManager",
    "Compilation",
    "Cost",
    "CostModel",
    "Direction",
    "Doubt",
    "Kernel",
    "Machine",
    "Measurement",
    "Operation",
    "Place",
    "Plan",
    "Prediction",
    "Probe",
    "Rates",
    "ReportRow",
    "Settings",
    "Share",
    "Site",
    "Stopwatch",
    "Telemetry",
    "Timing",
    "Wisdom",
    "WisdomFile",
    "Work",
    "Workload",
    "WrongResult",
    "algorithms",
    "ask_again_after_fork",
    "backends",
    "carried_out",
    "choose",
    "configure",
    "default_manager",
    "enable_otlp",
    "from_environment",
    "given_manager",
    "is_process_wide",
    "kernels",
    "probe",
    "register",
    "register_marker",
    "register_operation",
    "register_probe",
    "register_rehearsal",
    "report",
    "this_machine",
    "unregister",
    "unregister_marker",
    "unregister_operation",
    "unregister_probe",
    "unregister_rehearsal",
]
