"""Counts tests: turns what the runners leave behind into {"passed", "failed", "skipped", "failures"}.

    tally.py bep   EVENTS OUT RC     a `bazel test` run, from its build event file
    tally.py junit XML    OUT RC     pytest
    tally.py failed XML              prints the pytest ids of what failed, a line each
    tally.py unsteady OUT            what failed in OUT has passed since, alone: so it counts
    tally.py json  JSON   OUT RC     a runner that counts by itself (conformance)
    tally.py check OUT RC            one check: passed or failed
    tally.py skip  OUT               a part that cannot run here, as one skipped test
    tally.py sum   OUT...            prints a line for each failure and each unsteady test, then the
                                     one line of counts; exits 1 if anything failed

RC is the runner's exit status. A runner that failed without saying which test did counts as one
failed test, so that a crash or a time limit can never look like success.
"""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import unquote, urlparse

NAMES = ("passed", "failed", "skipped")

Counts = dict[str, int]


def has_failed(case: ET.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def junit(path: Path, failures: list[str]) -> Counts:
    counts = dict.fromkeys(NAMES, 0)
    for case in ET.parse(path).getroot().iter("testcase"):
        # GoogleTest marks what it did not run in attributes, pytest in a child element.
        marks = {case.get("status"), case.get("result")}
        if has_failed(case):
            counts["failed"] += 1
            failures.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is not None or marks & {"notrun", "skipped", "suppressed"}:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def failed_ids(path: Path) -> list[str]:
    """What pytest takes to run them again; its XML must name files (junit_family=xunit1)."""
    ids = []
    for case in ET.parse(path).getroot().iter("testcase"):
        if not has_failed(case):
            continue
        file, name = case.get("file", ""), case.get("name", "")
        module = file.removesuffix(".py").replace("/", ".")
        classes = case.get("classname", "").removeprefix(module).split(".")
        ids.append("::".join([file, *filter(None, classes), name]))
    return list(dict.fromkeys(ids))


def bep(path: Path, failures: list[str]) -> Counts:
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
                    one = junit(xml, [])
        if not passed and one["failed"] == 0:
            one["failed"] = 1
        if not passed:
            failures.append(event["id"]["testResult"]["label"])
        for name in NAMES:
            counts[name] += one[name]
    return counts


def read_counts(path: Path, failures: list[str]) -> Counts:
    data = json.loads(path.read_text())
    failures += [
        each if isinstance(each, str) else f"{each['name']}: {each['reason']}"
        for each in data.get("failures", [])
    ]
    return {name: int(data[name]) for name in NAMES}


READERS = {"bep": bep, "junit": junit, "json": read_counts}


def counted(kind: str, source: Path, rc: int, failures: list[str]) -> Counts:
    try:
        counts = READERS[kind](source, failures)
    except (OSError, ValueError, KeyError, ET.ParseError) as error:
        print(f"tally: {source}: {error}", file=sys.stderr)
        counts = dict.fromkeys(NAMES, 0)
        rc = rc or 1
    if rc != 0 and counts["failed"] == 0:
        counts["failed"] = 1
    return counts


def excuse(out: Path) -> None:
    """Their names stay, so that somebody looks into them."""
    data = json.loads(out.read_text())
    data["passed"] += data["failed"]
    data["failed"], data["unsteady"], data["failures"] = 0, data["failures"], []
    out.write_text(json.dumps(data) + "\n")


def main(arguments: list[str]) -> int:
    kind, *rest = arguments
    if kind == "failed":
        print("\n".join(failed_ids(Path(rest[0]))))
        return 0
    if kind == "unsteady":
        excuse(Path(rest[0]))
        return 0
    if kind == "sum":
        total = dict.fromkeys(NAMES, 0)
        for path in map(Path, rest):
            failures = []
            counts = read_counts(path, failures)
            for name, count in counts.items():
                total[name] += count
            for failure in failures or ["without a name"] * bool(counts["failed"]):
                print(f"FAILED {path.stem}: {failure}")
            for name in json.loads(path.read_text()).get("unsteady", []):
                print(f"UNSTEADY {path.stem}: {name}: it failed once, and passed alone")
        print(", ".join(f"{total[name]} {name}" for name in NAMES))
        return 1 if total["failed"] else 0
    failures: list[str] = []
    if kind == "skip":
        out, counts = Path(rest[0]), {"passed": 0, "failed": 0, "skipped": 1}
    elif kind == "check":
        out, rc = Path(rest[0]), int(rest[1])
        counts = {"passed": int(rc == 0), "failed": int(rc != 0), "skipped": 0}
    else:
        out, rc = Path(rest[1]), int(rest[2])
        counts = counted(kind, Path(rest[0]), rc, failures)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**counts, "failures": failures}) + "\n")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
