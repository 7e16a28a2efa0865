"""``python -m weft.doctor``: tells whether Weft can work here, and what to do where it can't.

One line per check. Exits with 1 when a check failed. ``--no-self-test`` leaves out the two processes that
call each other at the end. A Weft that cannot be loaded at all says so itself, when Python imports it.
"""

from __future__ import annotations

import argparse

from weft import env
from weft.doctor import installation, machine, self_test

CHECKS = (
    installation.versions,
    installation.native_parts,
    installation.registration,
    installation.patches,
    machine.network,
    machine.key_file,
    machine.limits,
    installation.unknown_variables,
)


def main(arguments: list[str] | None = None) -> int:
    """Runs all checks, prints what they find, and returns the exit status.

    Args:
        arguments: of the command line; by default those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m weft.doctor", description=__doc__)
    parser.add_argument("--no-self-test", action="store_true", help="start no processes")
    chosen = parser.parse_args(arguments)
    failed = False
    for check in CHECKS if chosen.no_self_test else (*CHECKS, self_test.run):
        for finding in check():
            failed = failed or finding.level == "FAIL"
            print(f"{finding.level:4}  {finding.text}")
    print("\nEnvironment variables (docs/reference/environment.md):")
    for row in env.table():
        value = f"={row.value}" if row.value is not None else f" (default {row.default!r})"
        print(f"  {row.name}{value}")
    return 1 if failed else 0
