"""``python -m weft.top HOST:PORT``: what the workers of a group do now, in a terminal.

HOST:PORT is where one of them serves its figures (``WEFT_METRICS``); it asks the others over RPC. Ranks
that are in no RPC group answer for themselves only: give the address of each. The table needs
``rich`` (``pip install weft[top]``); ``--json`` does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from weft._torch.printable import printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

State = dict[str, Any]

_PATIENCE = 5.0  # seconds for an address to answer


class Unreachable(Exception):
    """An address does not answer."""


def fetch(places: list[str], page: str) -> list[State]:
    """What the groups of these addresses answer, each process once.

    Raises:
        Unreachable: one of them serves no figures.
    """
    found: dict[Any, State] = {}
    for place in places:
        try:
            with urllib.request.urlopen(f"http://{place}/{page}", timeout=_PATIENCE) as answer:
                states = json.load(answer)
        except (OSError, ValueError) as error:
            raise Unreachable(
                f"{place} does not answer ({error}); set WEFT_METRICS={place} where that worker runs"
            ) from None
        for one in states:
            found.setdefault((one.get("host"), one.get("pid"), one["name"]), one)
    return list(found.values())


class View:
    """Makes the table; rates are those since the table before."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[float, float]] = {}  # by worker: when, and how many

    def table(self, states: list[State]) -> Table:
        """One row for each process, the longest wait of each at its end."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name, side in _COLUMNS.items():
            table.add_column(name, justify=side, no_wrap=name != _LAST)
        for one in states:
            if one["error"]:
                blanks = [""] * (len(_COLUMNS) - 3)
                cells = [str(one["rank"]), one["name"], *blanks]
                table.add_row(*map(_cell, cells), _cell(one["error"], "red"))
            else:
                table.add_row(*map(_cell, self._row(one)))
        return table

    def _row(self, one: State) -> list[str]:
        figures = one["metrics"]
        counters = figures["counters"]
        waits = one["waits"]
        return [
            str(one["rank"]),
            one["name"],
            f"{one['host']}:{one['pid']}",
            self._rate(one["name"], counters.get("calls_sent", 0)),
            f"{counters.get('client_active_calls', 0):.0f}",
            f"{counters.get('server_active_calls', 0):.0f}",
            _bytes(sum(peer["queued_bytes"] for peer in figures["peers"].values())),
            f"{sum(group['collectives'] for group in figures['groups'].values())}",
            _wait(waits[0]) if waits else "",
        ]

    def _rate(self, name: str, calls: float) -> str:
        now = time.monotonic()
        before = self._calls.get(name)
        self._calls[name] = now, calls
        return "" if before is None else f"{(calls - before[1]) / (now - before[0]):.0f}"


_LAST = "waits longest for"
_COLUMNS = {
    "rank": "right",
    "name": "left",
    "process": "left",
    "calls/s": "right",
    "calls": "right",
    "serves": "right",
    "queued": "right",
    "collectives": "right",
    _LAST: "left",
}


def _cell(text: str, style: str = "") -> Text:
    """In one line, and not read as rich's markup: workers choose their texts."""
    from rich.text import Text

    return Text(printable(text).replace("\n", "\\n"), style)


def _wait(one: dict[str, Any]) -> str:
    """As ``str`` of a ``weft.Waiting``, but short."""
    since = f"{one['seconds']:.0f} s"
    if one["kind"] == "call":
        return f"{one['whom']}, {one['what']} call, {since}"
    ranks = ", ".join(map(str, one["ranks"]))
    what = one["what"].removeprefix("weft:")
    number = f" {one['number']}" if one["number"] else ""
    return f"{'rank ' + ranks + ', ' if ranks else ''}{what}{number}, {since}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m weft.top", description="What the workers of a group do now."
    )
    parser.add_argument(
        "places", nargs="+", type=_place, metavar="HOST:PORT", help="as in WEFT_METRICS"
    )
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between looks (2)")
    parser.add_argument("--once", action="store_true", help="looks once and ends")
    parser.add_argument("--json", action="store_true", help="one JSON list for each look")
    parser.add_argument("--stacks", action="store_true", help="where all threads are in Python")
    return parser.parse_args(arguments)


def _place(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, got {text!r}")
    return text


def main(arguments: list[str]) -> int:
    """Shows it until Ctrl-C; the exit status."""
    given = parse(arguments)
    try:
        show(given)
    except Unreachable as error:
        print(f"weft.top: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name != "rich":
            raise
        print(
            "weft.top: the table needs rich: pip install 'weft[top]'. Or use --json.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def show(given: argparse.Namespace) -> None:
    """Prints in the way that the command line asks for."""
    if given.json:
        show_json(given)
    elif given.stacks:
        show_stacks(given)
    else:
        show_table(given)


def show_json(given: argparse.Namespace) -> None:
    """Prints for scripts."""
    page = "stacks" if given.stacks else "group"
    while True:
        print(json.dumps(fetch(given.places, page)), flush=True)
        if given.once:
            return
        time.sleep(given.interval)


def show_stacks(given: argparse.Namespace) -> None:
    """Once: the text is long."""
    for one in fetch(given.places, "stacks"):
        # Indented, so that no line of a worker's looks like the first line of another one.
        said = printable(one["error"] or one["stacks"]).replace("\n", "\n    ")
        print(f"== {printable(one['name'])} (rank {one['rank']})\n    {said}")


def show_table(given: argparse.Namespace) -> None:
    """Prints for people."""
    from rich.console import Console
    from rich.live import Live

    view = View()
    table = view.table(fetch(given.places, "group"))
    if given.once:
        Console().print(table)
        return
    with Live(table, auto_refresh=False) as live:
        while True:
            time.sleep(given.interval)
            live.update(view.table(fetch(given.places, "group")), refresh=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
