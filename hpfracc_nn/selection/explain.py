"""Why this kernel and not another: a plain text table."""

from collections.abc import Iterable, Sequence

from hpfracc_nn.selection.environment import Settings
from hpfracc_nn.selection.sampling import quantile
from hpfracc_nn.selection.verdict import Verdict, accepted
from hpfracc_nn.selection.workload import Measurement, Workload

HEADER = ("", "kernel", "predicted ms", "workspace", "saves", "forward ms", "backward ms", "reason")


def table(
    verdicts: Sequence[Verdict],
    workload: Workload,
    settings: Settings,
    history: Iterable[Measurement],
) -> str:
    """Return the table, fastest first, refused ones last; the chosen one is marked `*`.

    Predicted is forward plus the backward that the workload asks for; forward and backward
    are 20 % quantiles of what was measured for exactly this workload.
    """
    measured = [each for each in history if each.workload == workload and each.succeeded]
    ranked = accepted(verdicts)
    lines: list[tuple[str, ...]] = [HEADER]
    for place, verdict in enumerate(ranked):
        lines.append(_accepted_line(verdict, place == 0, _reason(place, ranked, settings), workload, measured))
    for verdict in verdicts:
        if verdict.refusal is not None:
            lines.append(("", verdict.kernel.name, "-", "-", "-", "-", "-", f"refused: {verdict.refusal}"))
    text = [_title(workload), *_aligned(lines)]
    if not ranked:
        text.append("No kernel is left for this workload.")
    return "\n".join(text)


def in_bytes(count: float) -> str:
    """Return `count` bytes in a unit that keeps it short."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _accepted_line(
    verdict: Verdict, chosen: bool, reason: str, workload: Workload, measured: Sequence[Measurement]
) -> tuple[str, ...]:
    name = verdict.kernel.name
    return (
        "*" if chosen else "",
        name,
        f"{1e3 * verdict.seconds:.4g}",
        in_bytes(verdict.workspace),
        in_bytes(verdict.kernel.saves(workload)),
        *(_measured_ms(measured, name, direction) for direction in ("forward", "backward")),
        reason,
    )


def _reason(place: int, ranked: Sequence[Verdict], settings: Settings) -> str:
    if place:
        return f"{ranked[place].seconds / ranked[0].seconds:.3g} times the lowest" if ranked[0].seconds else ""
    if settings.forced:
        return f"chosen: {settings.forced}"
    return "chosen: lowest estimate" if len(ranked) > 1 else "chosen: the only one that accepts"


def _measured_ms(measured: Sequence[Measurement], name: str, direction: str) -> str:
    seconds = quantile([m.seconds for m in measured if m.kernel == name and m.direction == direction])
    return "-" if seconds is None else f"{1e3 * seconds:.4g}"


def _title(workload: Workload) -> str:
    wanted = {"the input": workload.needs_gradient, "the weights": workload.learns_weights}
    gradients = " and ".join(name for name, is_wanted in wanted.items() if is_wanted)
    return (
        f"{workload}: rows={workload.rows} n={workload.n} width={workload.width} "
        f"channels={workload.channels} exponentials={workload.exponentials} threads={workload.threads}, "
        + (f"gradient in {gradients}" if gradients else "no gradient")
    )


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
