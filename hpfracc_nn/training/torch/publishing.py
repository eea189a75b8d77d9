"""How a report reaches Lightning's loggers: scalars for all, figures and text for TensorBoard, a table for W&B."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from hpfracc_nn.analytics import History, choice_map, predicted_against_measured, shares_over_time, timeline
from hpfracc_nn.selection import ReportRow
from hpfracc_nn.training import table

PLOTS = (choice_map, predicted_against_measured, timeline)
DPI = 90


def log_scalars(loggers: Sequence[Logger], prefix: str, values: Mapping[str, float], step: int) -> None:
    """Give each logger the values, under the prefix and its own separator."""
    for logger in loggers:
        named = {f"{prefix}{logger.group_separator}{name}": value for name, value in values.items()}
        logger.log_metrics(named, step=step)


def log_table(loggers: Sequence[Logger], name: str, rows: Sequence[ReportRow], footer: str, step: int) -> None:
    """Give TensorBoard the table as text, and Weights & Biases as a table; others have no room for one."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_text(f"{name}/table", table.markdown(rows, footer), step)
        elif hasattr(logger, "log_table"):
            header, *lines = table.cells(rows)
            logger.log_table(key=f"{name}/table", columns=header, data=lines, step=step)


def log_figures(loggers: Sequence[Logger], name: str, history: History, steps: Sequence[int], step: int) -> None:
    """Give TensorBoard the plots; `steps` are those of the history's looks."""
    boards = [logger for logger in loggers if isinstance(logger, TensorBoardLogger)]
    if not boards:
        return
    drawn = {plot.__name__: plot(history) for plot in PLOTS}
    drawn["shares_over_time"] = shares_over_time(history, steps=steps, unit="step of the optimizer")
    for title, figure in drawn.items():
        pixels = _pixels(figure)
        for board in boards:
            board.experiment.add_image(f"{name}/{title}", pixels, step, dataformats="HWC")


def has_matplotlib() -> bool:
    """Return whether figures can be drawn; loads nothing."""
    try:
        return importlib.util.find_spec("matplotlib") is not None
    except ValueError:  # sys.modules["matplotlib"] is None: someone blocks it
        return False


def _pixels(figure: Any) -> np.ndarray:
    """Return a figure as an image [height, width, 3], without pyplot, which would choose a window system."""
    canvas = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
