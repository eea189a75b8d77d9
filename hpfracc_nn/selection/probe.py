"""What a framework must be able to tell: selection itself imports none."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpfracc_nn.selection.machine import Rates


class Probe(Protocol):
    """Answers for one framework; registered by its room, like the kernels.

    Attributes:
        framework: Whose arrays it answers for.
        waits_to_be_asked: Whether `calibrate` compiles, and runs only where a user asks for it.

    Examples:
        >>> work = workload((256, 1024), Caputo(0.5), framework="numpy")  # which loads NumPy's
        >>> asked = probe("numpy")
        >>> asked.framework, asked.threads() >= 1
        ('numpy', True)
    """

    framework: str
    waits_to_be_asked: bool

    def threads(self) -> int:
        """Return how many threads one of its calls may use."""

    def free_memory(self, device: str) -> int | None:
        """Return the bytes that can still be allocated on `device`, None where it cannot be told."""

    def release(self, device: str) -> None:
        """Give back the memory of `device` that the framework holds and does not use."""

    def deterministic(self) -> bool:
        """Return whether the framework was told to use deterministic algorithms only."""

    def calibrate(self, device: str, dtype: str) -> "Rates":
        """Measure the rates of `device` in a few milliseconds, with the threads set now."""


_probes: dict[str, Probe] = {}


def register_probe(probe: Probe) -> Probe:
    """Let `probe` answer for its framework from now on, and return it.

    An operation of the user's own needs none; where its framework has one, calls ask it for threads and free memory.

    Examples:
        >>> class Mine(Probe):  # and so on: all that a Probe answers
        ...     framework, waits_to_be_asked = "mine", False
        ...
        ...     def threads(self):
        ...         return 4
        >>> mine = register_probe(Mine())
        >>> probe("mine").threads()
        4
        >>> unregister_probe("mine")
    """
    _probes[probe.framework] = probe
    return probe


def unregister_probe(framework: str) -> None:
    """Forget the probe of `framework`.

    Raises:
        LookupError: None is registered.

    Examples:
        >>> unregister_probe("mine")
        Traceback (most recent call last):
            ...
        LookupError: no probe for framework 'mine': registered are ...
    """
    probe(framework)
    del _probes[framework]


def probe(framework: str) -> Probe:
    """Return the probe of `framework`.

    Raises:
        LookupError: None is registered.

    Examples:
        >>> work = workload((256, 1024), Caputo(0.5), framework="numpy")  # which loads NumPy's
        >>> probe("numpy").free_memory("cpu") > 0
        True
    """
    if framework not in _probes:
        known = ", ".join(sorted(_probes)) or "none"
        raise LookupError(
            f"no probe for framework {framework!r}: registered are {known}; "
            "import the package that registers it, or call configure(calibration='shipped')."
        )
    return _probes[framework]


def has_probe(framework: str) -> bool:
    """Return whether `framework` has a probe; the operations of a user's own need none."""
    return framework in _probes


def probes() -> tuple[Probe, ...]:
    """Return every probe, in order of framework."""
    return tuple(_probes[framework] for framework in sorted(_probes))
