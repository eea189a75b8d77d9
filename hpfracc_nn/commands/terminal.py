"""What all commands say passes here: names out of a file may hold what a terminal acts upon."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from hpfracc_nn.errors import printable


def say(line: str, *, err: bool = False) -> None:
    """Write one line to standard output, or to standard error."""
    importlib.import_module("typer").echo(printable(line), err=err)


@contextmanager
def in_one_line(command: str, *errors: type[Exception]) -> Iterator[None]:
    """Leave with status 1 where an argument, a file or the environment is wrong, and say so in one line.

    Args:
        command: What was called.
        errors: What else says so, besides ValueError and OSError, in the first line of its text.
    """
    try:
        yield
    except BrokenPipeError:  # of `hpfracc-nn info | head`: nobody reads on, and that is no fault
        raise
    except (ValueError, OSError) as error:
        _leave(command, str(error))
    except errors as error:
        _leave(command, str(error).partition("\n")[0] or type(error).__name__)


def _leave(command: str, reason: str) -> NoReturn:
    say(f"hpfracc-nn {command}: {reason}", err=True)
    raise importlib.import_module("typer").Exit(1) from None
