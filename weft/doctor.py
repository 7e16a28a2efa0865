"""``python -m weft.doctor``: tells whether Weft can work here, and what to do where it can't.

One line per check. Exits with 1 when a check failed. ``--no-self-test`` leaves out the two processes that
call each other at the end. A Weft that cannot be loaded at all says so itself, when Python imports it.
"""

from __future__ import annotations

import argparse
import sys

from weft import _doctor_checks as checks


def main(arguments: list[str] | None = None) -> int:
    """Runs all checks, prints them, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m weft.doctor", description=__doc__)
    parser.add_argument("--no-self-test", action="store_true", help="start no processes")
    chosen = parser.parse_args(arguments)
    failed = False
    for check in checks.ALL:
        if check is checks.self_test and chosen.no_self_test:
            continue
        for finding in check():
            failed = failed or finding.level == "FAIL"
            print(f"{finding.level:4}  {finding.text}")
    print()
    print("Environment variables (docs/reference/environment.md):")
    for line in checks.environment_lines():
        print(f"  {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
