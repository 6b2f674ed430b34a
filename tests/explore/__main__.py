"""`python -m tests.explore`: explores the thorough scenarios one after the other, and says how many states each has."""

from __future__ import annotations

import argparse
import time

from tests.explore.scenarios import QUICK, THOROUGH
from tests.explore.search import explore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the scenarios of `make test`")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scenarios whose name contains TEXT")
    parser.add_argument(
        "--max-states", type=int, default=20_000_000, help="give a scenario up beyond this (about 400 bytes each)"
    )
    arguments = parser.parse_args()
    for scenario in QUICK if arguments.quick else THOROUGH:
        if arguments.only not in scenario.name:
            continue
        begun = time.monotonic()
        try:
            found = explore(scenario, arguments.max_states)
        except RuntimeError as too_many:
            print(f"{too_many}; none of those reached is bad", flush=True)
            continue
        took = time.monotonic() - begun
        print(
            f"{scenario.name}: {found.num_states} states, {found.num_steps} steps, {found.num_endings} ends, {took:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
