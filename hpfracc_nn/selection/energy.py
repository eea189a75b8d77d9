"""Whether the energy that GPUs take can be read: NVML's own counter, through the optional package pynvml."""

import importlib


def refusal() -> str | None:
    """Return why energy cannot be read on this machine, or None where every visible GPU tells it.

    It imports pynvml and asks each GPU for its counter of energy, which Volta and later have.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        if error.name != "pynvml":
            raise
        return "the package pynvml is not installed (pip install nvidia-ml-py)"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML does not start ({error})"
    try:
        count = nvml.nvmlDeviceGetCount()
        for index in range(count):
            nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return f"a GPU does not tell its energy ({error})"
    finally:
        nvml.nvmlShutdown()
    return None if count else "NVML knows no GPU"
