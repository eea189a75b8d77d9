"""Which driver, integral, order alpha, noise type and scheme go together, and their strong orders: one table.

A combination that is not in the table is refused; the message gives the reason and the rows that apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpfracc_nn.solvers.noise import Noise

ITO, STRATONOVICH = "ito", "stratonovich"
INTERPRETATIONS = (ITO, STRATONOVICH)
NOISE_TYPES = ("additive", "diagonal", "scalar", "general")
DRIVERS = {
    "brownian": "Brownian motion",
    "semimartingale": "a continuous semimartingale",
    "fractional": "fractional Brownian motion",
    "smooth": "a noise with integrable paths",
    "jumps": "a process with jumps",
}

_ANY = NOISE_TYPES
_COMMUTING = ("diagonal", "scalar")
_MULTIPLICATIVE = ("diagonal", "scalar", "general")


@dataclass(frozen=True)
class Order:
    """A strong order of convergence: the smallest of a + b alpha + c H over its terms (a, b, c), H the Hurst index."""

    terms: tuple[tuple[float, float, float], ...]

    def __call__(self, alpha: float, hurst: float) -> float:
        """Return the strong order for an alpha and a Hurst index H."""
        return min(a + b * alpha + c * hurst for a, b, c in self.terms)

    def __str__(self) -> str:
        each = [_sum(term) for term in self.terms]
        return each[0] if len(each) == 1 else f"min({', '.join(each)})"


@dataclass(frozen=True)
class Rule:
    """One row of the table: a scheme and the equations that it solves.

    Attributes:
        driver: The kind of driving process, a key of `DRIVERS`.
        interpretations: The senses of the stochastic integral that are allowed, of `INTERPRETATIONS`.
        noise_types: The noise types of the equation that are allowed, of `NOISE_TYPES`.
        scheme: The scheme's name.
        order: Strong order at a fixed time, or None where none is declared.
        has_memory: Whether the row is for alpha < 1; else it is for alpha = 1.
        above: A bound that a fractional driver's Hurst index has to exceed; 0 is no bound.
    """

    driver: str
    interpretations: tuple[str, ...]
    noise_types: tuple[str, ...]
    scheme: str
    order: Order | None = None
    has_memory: bool = False
    above: float = 0.0

    def takes(self, case: Case) -> bool:
        """Return whether the row allows a case."""
        return (
            self.driver == case.driver
            and case.interpretation in self.interpretations
            and case.noise_type in self.noise_types
            and self.scheme == case.scheme
            and self.has_memory == (case.alpha < 1)
            and (self.driver != "fractional" or self._takes_index(case))
        )

    def _takes_index(self, case: Case) -> bool:
        if self.above == 0 or case.hurst > self.above:
            return True
        return case.hurst == self.above and case.is_open


@dataclass(frozen=True)
class Case:
    """A combination of equation, noise and scheme that a caller wants to solve, looked up in the table.

    Attributes:
        driver: The kind of driving process, a key of `DRIVERS`.
        interpretation: The sense of the stochastic integral, one of `INTERPRETATIONS`.
        alpha: The smallest order.
        noise_type: The noise type of the equation, one of `NOISE_TYPES`.
        scheme: The scheme's name.
        hurst: The smallest Hurst index of a fractional driver.
        is_open: Whether the index only comes close to `hurst`, as a learned index does to its lower bound.
        noise: The name of the noise, for messages.
    """

    driver: str
    interpretation: str
    alpha: float
    noise_type: str
    scheme: str
    hurst: float = 0.5
    is_open: bool = False
    noise: str = "a noise"

    def __str__(self) -> str:
        order = "alpha=1" if self.alpha >= 1 else f"alpha={self.alpha:g}"
        kind = DRIVERS[self.driver]
        if self.driver == "fractional":
            kind = f"paths like those of {kind} of H={self.hurst:g}"
        return (
            f"scheme={self.scheme!r}, interpretation={self.interpretation!r}, {order}, noise_type={self.noise_type!r}, "
            f"driven by {self.noise}: {kind}"
        )


def _order(a: float, b: float = 0, c: float = 0) -> Order:
    return Order(((a, b, c),))


RULES: tuple[Rule, ...] = (
    Rule("brownian", INTERPRETATIONS, ("additive",), "euler", _order(1)),
    Rule("brownian", (ITO,), _MULTIPLICATIVE, "euler", _order(0.5)),
    Rule("brownian", INTERPRETATIONS, ("diagonal",), "milstein", _order(1)),
    Rule("brownian", INTERPRETATIONS, ("additive",), "srk", _order(1.5)),
    Rule("brownian", (ITO,), ("diagonal",), "srk", _order(1.5)),
    Rule("brownian", INTERPRETATIONS, ("additive",), "heun", _order(1)),
    Rule("brownian", (STRATONOVICH,), _COMMUTING, "heun", _order(1)),
    Rule("brownian", (STRATONOVICH,), ("general",), "heun", _order(0.5)),
    Rule("brownian", INTERPRETATIONS, ("additive",), "reversible_heun", _order(1)),
    Rule("brownian", (STRATONOVICH,), _COMMUTING, "reversible_heun", _order(1)),
    Rule("brownian", (STRATONOVICH,), ("general",), "reversible_heun", _order(0.5)),
    Rule("brownian", INTERPRETATIONS, ("additive",), "euler", _order(-0.5, 1), has_memory=True),
    Rule("brownian", (ITO,), _MULTIPLICATIVE, "euler", _order(-0.5, 1), has_memory=True),
    Rule("semimartingale", INTERPRETATIONS, ("additive",), "euler"),
    Rule("semimartingale", (ITO,), _MULTIPLICATIVE, "euler"),
    Rule("semimartingale", INTERPRETATIONS, ("additive",), "heun"),
    Rule("semimartingale", (STRATONOVICH,), _MULTIPLICATIVE, "heun"),
    Rule("fractional", INTERPRETATIONS, ("additive",), "euler", Order(((1, 0, 0), (0.5, 0, 1)))),
    Rule("fractional", INTERPRETATIONS, ("additive",), "heun", _order(0.5, 0, 1)),
    Rule("fractional", (STRATONOVICH,), _MULTIPLICATIVE, "euler", _order(-1, 0, 2), above=1 / 2),
    Rule("fractional", (STRATONOVICH,), _COMMUTING, "heun", Order(((-0.5, 0, 3), (0.5, 0, 1))), above=1 / 3),
    Rule("fractional", (STRATONOVICH,), ("general",), "heun", _order(-0.5, 0, 2), above=1 / 2),
    Rule("smooth", INTERPRETATIONS, _ANY, "euler", _order(1)),
    Rule("smooth", INTERPRETATIONS, _ANY, "heun", _order(2)),
    Rule("jumps", (ITO,), _ANY, "euler"),
)


@dataclass(frozen=True)
class Reason:
    """Why a case is refused and what to do instead: a message shows `text` of the first reason that applies."""

    applies: Callable[[Case], bool]
    text: str


REASONS: tuple[Reason, ...] = (
    Reason(
        lambda case: case.driver != "brownian" and case.alpha < 1,
        "alpha < 1 is a stochastic Volterra equation, whose weights stand on the independent increments of Brownian "
        "motion; pass noise=Brownian(), or alpha=1",
    ),
    Reason(
        lambda case: case.alpha < 1 and case.scheme != "euler",
        "alpha < 1 has one scheme, Euler's with its weights; pass scheme='euler'",
    ),
    Reason(
        lambda case: case.alpha < 1 and case.interpretation == STRATONOVICH,
        "the kernel is singular, so that Stratonovich's correction would be infinite; pass interpretation='ito'",
    ),
    Reason(
        lambda case: case.driver == "jumps" and case.interpretation == STRATONOVICH,
        "a path that jumps has no Stratonovich integral; pass interpretation='ito'",
    ),
    Reason(
        lambda case: case.driver == "jumps",
        "a step knows the sum of the jumps in it and not each of them; pass scheme='euler'",
    ),
    Reason(
        lambda case: case.driver == "fractional" and case.scheme in ("milstein", "srk", "reversible_heun"),
        "its formula is that of Brownian increments; pass scheme='heun', or 'euler' above H = 1/2",
    ),
    Reason(
        lambda case: case.driver == "fractional" and case.interpretation == ITO,
        "the noise is no semimartingale, and a diffusion that depends on the state has no Ito integral against it; "
        "pass interpretation='stratonovich', the integral along each path",
    ),
    Reason(
        lambda case: case.driver == "fractional" and case.scheme == "euler",
        "sums of left-point values diverge like n_steps**(1 - 2 H) for H < 1/2, and at H = 1/2 have another limit; "
        "pass scheme='heun', or a diffusion that does not depend on the state, with noise_type 'additive'",
    ),
    Reason(
        lambda case: case.driver == "fractional" and case.noise_type == "general",
        "up to H = 1/2 several motions need the areas between them, which increments do not hold; write a diagonal "
        "or scalar noise",
    ),
    Reason(
        lambda case: case.driver == "fractional",
        "Heun's method converges above H = 1/3; pass a diffusion that does not depend on the state, with noise_type "
        "'additive'",
    ),
    Reason(
        lambda case: (
            case.driver in ("smooth", "semimartingale") and case.scheme in ("milstein", "srk", "reversible_heun")
        ),
        "its formula is that of Brownian increments; pass scheme='euler' or 'heun'",
    ),
    Reason(
        lambda case: case.scheme == "euler",
        "Euler's step is Ito's; pass interpretation='ito', or scheme='heun'",
    ),
    Reason(
        lambda case: case.scheme in ("heun", "reversible_heun"),
        "it converges to Stratonovich's integral; pass interpretation='stratonovich', or scheme='euler'",
    ),
    Reason(
        lambda case: case.scheme == "milstein" and case.noise_type == "additive",
        "for additive noise it is Euler's method; pass scheme='euler'",
    ),
    Reason(
        lambda case: case.scheme in ("milstein", "srk") and case.noise_type in ("scalar", "general"),
        "several entries that share a motion need integrals that it does not have; pass scheme='euler', or 'heun' in "
        "Stratonovich's sense",
    ),
    Reason(
        lambda case: case.scheme == "srk",
        "its diagonal form is Ito's; pass interpretation='ito', or scheme='milstein'",
    ),
)


def driver_of(noise: Noise) -> str:
    """Return the kind of a noise, a key of `DRIVERS`."""
    if noise.is_brownian:
        return "brownian"
    if not noise.is_continuous:
        return "jumps"
    if noise.regularity >= 1:
        return "smooth"
    return "semimartingale" if noise.is_semimartingale else "fractional"


def rule_of(owner: str, case: Case) -> Rule:
    """Return the row of the table that allows a case.

    Raises:
        ValueError: No row does; the message gives the reason, and the rows for the case's driver and alpha, or for the
            driver alone where none has such an alpha.
    """
    for rule in RULES:
        if rule.takes(case):
            return rule
    reason = next(reason.text for reason in REASONS if reason.applies(case))
    of_driver = [rule for rule in RULES if rule.driver == case.driver]
    of_alpha = [rule for rule in of_driver if rule.has_memory == (case.alpha < 1)]
    what = "driver and alpha" if of_alpha else "driver"
    raise ValueError(f"{owner}({case}): {reason}. Allowed for this {what} are:\n{table(of_alpha or of_driver)}")


def table(rules: Sequence[Rule] = RULES) -> str:
    """Return rules as a table in Markdown."""
    lines = [
        "| driver | alpha | integral | noise types | scheme | strong order |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rule in rules:
        hurst = f", H > {_number(rule.above)}" if rule.above > 0 else ""
        order = "-" if rule.order is None else str(rule.order)
        lines.append(
            f"| {DRIVERS[rule.driver]}{hurst} | {'1/2 to 1' if rule.has_memory else '1'} | "
            f"{' or '.join(rule.interpretations)} | {', '.join(rule.noise_types)} | `{rule.scheme}` | {order} |"
        )
    return "\n".join(lines)


def _number(x: float) -> str:
    for whole in (1, 2, 3):
        if abs(x * whole - round(x * whole)) < 1e-12:
            return f"{round(x * whole)}" if whole == 1 else f"{round(x * whole)}/{whole}"
    return f"{x:g}"


def _sum(term: tuple[float, float, float]) -> str:
    constant, *factors = term
    named = [(factor, name) for factor, name in zip(factors, ("alpha", "H"), strict=True) if factor]
    parts = [name if factor == 1 else f"{_number(factor)} {name}" for factor, name in named]
    if constant > 0 and parts:
        parts.append(f"+ {_number(constant)}")
    elif constant < 0:
        parts.append(f"- {_number(-constant)}")
    elif not parts:
        parts.append(_number(constant))
    return " ".join(parts)
