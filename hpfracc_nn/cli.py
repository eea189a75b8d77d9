"""The command `hpfracc-nn`; importing this module loads no optional package."""

import importlib
import sys
from typing import Any

EXTRAS = {
    "arch": "data",
    "lightning": "lightning",
    "matplotlib": "plot",
    "pandas": "data",
    "rich": "cli",
    "torch": "torch",
    "typer": "cli",
}


def main() -> None:
    """Run the command line; where an extra's package is missing, name it in one line and exit with status 1."""
    try:
        app()()
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name not in EXTRAS:
            raise
        says_how = "pip install" in str(error)
        sys.exit(str(error) if says_how else f"needs the package {name!r}; pip install 'hpfracc-nn[{EXTRAS[name]}]'.")


def app() -> Any:
    """Return the typer application.

    Raises:
        ModuleNotFoundError: typer or rich is not installed.
    """
    return importlib.import_module("hpfracc_nn.commands").app
