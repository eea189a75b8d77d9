"""What a case of each test takes, from a run that pytest wrote with `--junitxml`: the fast tests are chosen by it.

    make test ARGS='-m "not slow" --junitxml=build/tests.xml' && python tests/seconds.py build/tests.xml

Tests that did not run keep their entry, those whose cases fit into the budget have none.
"""

from __future__ import annotations

import collections
import json
import math
import pathlib
import statistics
import sys
import xml.etree.ElementTree

TABLE = pathlib.Path(__file__).with_suffix(".json")
# The fast suite runs as many cases of a test as fit into BUDGET seconds, or a SHARE of them if that fits into LONGEST,
# and one in any case: what has none among the fast tests is marked `slow`, where its reader sees it. Cases of which one
# takes more than LONG are left to `.ci/run`.
BUDGET = 0.3
SHARE = 1 / 6
LONGEST = 4.0
LONG = 0.3


def chosen(cases: int, seconds: float) -> int:
    """Return how many of a test's cases run, where one takes `seconds`."""
    fit, limit = int(BUDGET / seconds), int(LONGEST / seconds)
    return max(1, fit, min(math.ceil(SHARE * cases), limit))


def main(path: str) -> None:
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        if case.find("skipped") is None:
            module, function = case.attrib["classname"].split(".")[1], case.attrib["name"].split("[")[0]
            seconds[f"{module}::{function}"].append(float(case.attrib["time"]))
    table = json.loads(TABLE.read_text())
    for name, each in seconds.items():
        if name in table or sum(each) > BUDGET:
            table[name] = max(round(statistics.mean(each), 3), 0.001)
    TABLE.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
