"""Those who only listen, such as telemetry: whatever they raise, the call that they hear of goes on."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from hpfracc_nn.selection.failure import is_from_signal

_log = logging.getLogger("hpfracc_nn.selection")


def tell(listener: Callable[..., object], *told: Any) -> None:
    """Call a listener; what it raises is logged once for each class of error, and goes no further.

    What the handler of a signal raises meanwhile is not the listener's doing, and passes.
    """
    try:
        listener(*told)
    except Exception as error:
        if is_from_signal(error):
            raise
        _say_once(getattr(listener, "__qualname__", type(listener).__name__), type(error).__name__)


@cache
def _say_once(name: str, kind: str) -> None:
    _log.warning(
        "%s raised %s; the call goes on, what it was told is lost, and further ones are not logged.",
        name,
        kind,
        exc_info=True,
    )
