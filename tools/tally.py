"""Counts tests: turns what the runners leave behind into {"passed", "failed", "skipped"}.

    tally.py bep   EVENTS OUT RC     a `bazel test` run, from its build event file
    tally.py junit XML    OUT RC     pytest
    tally.py json  JSON   OUT RC     a runner that counts by itself (conformance)
    tally.py check OUT RC            one check: passed or failed
    tally.py sum   OUT...            prints the one line; exits 1 if anything failed

RC is the runner's exit status. A runner that failed without saying which test did counts as one
failed test, so that a crash or a time limit can never look like success.
"""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import unquote, urlparse

NAMES = ("passed", "failed", "skipped")


def junit(path: Path) -> dict[str, int]:
    counts = dict.fromkeys(NAMES, 0)
    for case in ET.parse(path).getroot().iter("testcase"):
        # GoogleTest marks what it did not run in attributes, pytest in a child element.
        marks = {case.get("status"), case.get("result")}
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif case.find("skipped") is not None or marks & {"notrun", "skipped", "suppressed"}:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def bep(path: Path) -> dict[str, int]:
    """Each test target's own XML; a target without one (crash, time limit) counts as one."""
    counts = dict.fromkeys(NAMES, 0)
    for line in path.read_text().splitlines():
        event = json.loads(line)
        result = event.get("testResult")
        if result is None:
            continue
        passed = result.get("status") in ("PASSED", "FLAKY")
        one = dict.fromkeys(NAMES, 0)
        for output in result.get("testActionOutput", []):
            if output.get("name") == "test.xml" and output.get("uri", "").startswith("file:"):
                xml = Path(unquote(urlparse(output["uri"]).path))
                if xml.exists():
                    one = junit(xml)
        if not passed and one["failed"] == 0:
            one["failed"] = 1
        if not passed:
            print(f"failed: {event['id']['testResult']['label']}", file=sys.stderr)
        for name in NAMES:
            counts[name] += one[name]
    return counts


def read_counts(path: Path) -> dict[str, int]:
    data = json.loads(path.read_text())
    return {name: int(data[name]) for name in NAMES}


READERS = {"bep": bep, "junit": junit, "json": read_counts}


def counted(kind: str, source: Path, rc: int) -> dict[str, int]:
    try:
        counts = READERS[kind](source)
    except (OSError, ValueError, KeyError, ET.ParseError) as error:
        print(f"tally: {source}: {error}", file=sys.stderr)
        counts = dict.fromkeys(NAMES, 0)
        rc = rc or 1
    if rc != 0 and counts["failed"] == 0:
        counts["failed"] = 1
    return counts


def main(arguments: list[str]) -> int:
    kind, *rest = arguments
    if kind == "sum":
        total = dict.fromkeys(NAMES, 0)
        for path in rest:
            for name, count in read_counts(Path(path)).items():
                total[name] += count
        print(", ".join(f"{total[name]} {name}" for name in NAMES))
        return 1 if total["failed"] else 0
    if kind == "check":
        out, rc = Path(rest[0]), int(rest[1])
        counts = {"passed": int(rc == 0), "failed": int(rc != 0), "skipped": 0}
    else:
        out, rc = Path(rest[1]), int(rest[2])
        counts = counted(kind, Path(rest[0]), rc)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(counts) + "\n")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
