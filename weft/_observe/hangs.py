"""A line in the log for what has been waited for too long (``WEFT_HANG_REPORT``)."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable

from weft._observe.answers import checked
from weft._observe.doing import doing
from weft._observe.group import ask, silent, why_silent
from weft._observe.questions import Questions
from weft._observe.waits import Waiting, who_waits
from weft._torch import current
from weft._torch.log import warn
from weft._torch.request_policy import register_function
from weft._torch.threads import started

_DEFAULT = "60"
_MOST_ASKED = 4
_PATIENCE = 1.0  # seconds for a rank that has seen that it was asked
_mutex = threading.Lock()
_watcher: _Watcher | None = None


def start() -> None:
    """Watches from now on; a second call changes nothing."""
    global _watcher
    seconds = limit()
    with _mutex:
        if seconds <= 0 or (_watcher is not None and _watcher.process == os.getpid()):
            return
        _watcher = _Watcher(seconds)
    register_function(doing)
    if started(_watcher, "what hangs is not reported"):
        atexit.register(_watcher.stop)


def limit() -> float:
    """After how many seconds what waits is reported; 0 or less: never."""
    text = os.environ.get("WEFT_HANG_REPORT") or _DEFAULT
    with contextlib.suppress(ValueError):
        if abs(seconds := float(text)) <= threading.TIMEOUT_MAX:  # not nan
            return seconds
    raise ValueError(f"WEFT_HANG_REPORT must be a number of seconds, got {text!r}")


class _Watcher(threading.Thread):
    """Looks four times within the limit, so a line comes at most a quarter late."""

    def __init__(self, limit: float) -> None:
        super().__init__(name="weft-hangs", daemon=True)
        self.process = os.getpid()
        self._limit = limit
        self._ended = threading.Event()
        self._told: set[object] = set()
        self._questions = Questions(self._ended)

    def run(self) -> None:
        while not self._ended.wait(self._limit / 4):
            try:
                self._look()
            except Exception as error:  # another thread ends the group, for example
                warn(f"what hangs was not looked for: {error}")

    def _look(self) -> None:
        if not _asks_by_rpc():
            self._questions.answer()
        late = [one for one in who_waits() if one.seconds >= self._limit]
        fresh = [one for one in late if self._key(one) not in self._told]
        self._told = {self._key(one) for one in late}
        for line in self._lines(fresh):
            warn(line)

    def stop(self) -> None:
        self._ended.set()
        self.join(timeout=2)

    @staticmethod
    def _key(one: Waiting) -> object:
        """What a line is said of: a collective, a worker and kind of call, a rank and its messages.

        Calls to one worker mostly wait for the same reason.
        """
        return one.kind, one.what, one.whom, one.number, one.ranks if one.kind == "message" else ()

    def _lines(self, late: list[Waiting]) -> list[str]:
        """One for each :meth:`_key`."""
        alike: dict[object, list[Waiting]] = {}
        for one in late:
            alike.setdefault(self._key(one), []).append(one)
        lines = []
        for each in alike.values():
            more = f" (and {len(each) - 1} more of these)" if len(each) > 1 else ""
            answers = _answers(each[0]) if _asks_by_rpc() else self._through_store(each[0])
            lines.append(f"{each[0]}{more}{answers}")
        return lines

    def _through_store(self, one: Waiting) -> str:
        """What the awaited ranks say. Each looks four times within the limit whether it was asked."""
        ranks = dict(zip(one.ranks, _global_ranks(one), strict=False))
        ranks = dict(list(ranks.items())[:_MOST_ASKED])
        if not ranks:
            return ""
        patience = self._limit / 4 + _PATIENCE
        said = self._questions.ask(list(ranks.values()), patience, self._limit / 40)
        none = silent(patience)
        return "".join(f"; rank {rank}: {said.get(each, none)}" for rank, each in ranks.items())


def _asks_by_rpc() -> bool:
    """Whether the workers of this process's RPC group may be asked what they do."""
    agent = current.agent()
    return agent is not None and agent._get_backend_options().request_policy != "script"


def _global_ranks(one: Waiting) -> list[int]:
    """Those that are awaited; none if their group has ended."""
    ranks = current.ranks_of(one.whom)
    return [ranks[rank] for rank in one.ranks if rank < len(ranks)]


def _answers(one: Waiting) -> str:
    """What the awaited workers say that they do, asked over RPC."""
    agent = current.agent()
    if agent is None:
        return ""
    awaited = _global_ranks(one)
    workers = [
        info
        for info in agent.get_worker_infos()
        if (info.name == one.whom if one.kind == "call" else info.id in awaited)
    ]
    said = [(info.name, ask(info.name, doing)) for info in workers[:_MOST_ASKED]]
    return "".join(f"; {name}: {_text(wait)}" for name, wait in said)


def _text(wait: Callable[[], str]) -> str:
    try:
        return checked(wait(), str)
    except Exception as error:
        return why_silent(error)
