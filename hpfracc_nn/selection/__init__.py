"""Which kernel runs: workloads in, plans out. Knows the kernels only by what they register."""

from hpfracc_nn.selection.cost import CostModel
from hpfracc_nn.selection.decision import Prediction
from hpfracc_nn.selection.environment import from_environment
from hpfracc_nn.selection.machine import Machine, Place, Rates, this_machine
from hpfracc_nn.selection.manager import BackendManager, default_manager, is_process_wide
from hpfracc_nn.selection.plan import Plan, running
from hpfracc_nn.selection.probe import Probe, probe, register_probe, unregister_probe
from hpfracc_nn.selection.process import choose, configure, report
from hpfracc_nn.selection.registry import (
    ALGORITHMS,
    BACKENDS,
    Compilation,
    Kernel,
    algorithms,
    ask_again_after_fork,
    backends,
    kernels,
    register,
    unregister,
)
from hpfracc_nn.selection.reporting import ReportRow
from hpfracc_nn.selection.sampling import Stopwatch
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.wisdom import Timing, Wisdom
from hpfracc_nn.selection.wisdom_file import WisdomFile
from hpfracc_nn.selection.workload import Cost, Direction, Measurement, Workload

__all__ = [
    "ALGORITHMS",
    "BACKENDS",
    "BackendManager",
    "Compilation",
    "Cost",
    "CostModel",
    "Direction",
    "Kernel",
    "Machine",
    "Measurement",
    "Place",
    "Plan",
    "Prediction",
    "Probe",
    "Rates",
    "ReportRow",
    "Settings",
    "Site",
    "Stopwatch",
    "Timing",
    "Wisdom",
    "WisdomFile",
    "Workload",
    "algorithms",
    "ask_again_after_fork",
    "backends",
    "choose",
    "configure",
    "default_manager",
    "from_environment",
    "is_process_wide",
    "kernels",
    "probe",
    "register",
    "register_probe",
    "report",
    "running",
    "this_machine",
    "unregister",
    "unregister_probe",
]
