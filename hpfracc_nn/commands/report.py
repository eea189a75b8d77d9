"""The command `hpfracc-nn report`: one page of plots and tables on which kernels ran, and why."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from hpfracc_nn.commands.terminal import in_one_line, say
from hpfracc_nn.commands.wisdom import directory_option, file_in

DEFAULT = Path("report.html")


def command(typer: Any) -> Callable[..., None]:
    """Return the command."""

    def report(
        file: Annotated[
            Path | None, typer.Argument(help="What History.save wrote; by default what this machine has learnt.")
        ] = None,
        output: Annotated[Path, typer.Option(help="Where to: a name that ends in .html, or in .png.")] = DEFAULT,
        directory: Annotated[Path | None, directory_option(typer)] = None,
    ) -> None:
        """Draw which kernel runs at which size, how right the predictions were, who ran when, and what failed."""
        analytics = importlib.import_module("hpfracc_nn.analytics")
        with in_one_line("report"):
            if file is None:
                history = analytics.History.of_wisdom(file_in(directory).read())
            else:
                history = analytics.History.load(file)
            path = analytics.report(history, output)
        say(f"Report: {path}")
        if history.is_empty:
            where = file_in(directory).path if file is None else file
            say(f"It is empty: {where} has no call yet.")

    return report
