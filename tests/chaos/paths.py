"""What the processes of a case talk over, and what else is theirs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Path:
    """`environment` makes Weft take it."""

    environment: dict[str, str] = field(default_factory=dict)
    proxied: bool = False  # over TCP, through a Network (proxy.py)
    keyed: bool = False  # with a key file
    clocks: bool = False  # each process has a wall clock of its own (clocked_worker.py)


MESSAGES = {"WEFT_SHARED_MEMORY": "0"}
TCP = {**MESSAGES, "WEFT_UNIX_SOCKET": "0"}
TLS = {**TCP, "WEFT_ENCRYPTION": "on"}
OF_WORKERS = {
    "unix": Path(keyed=True),
    "tcp": Path(TCP, proxied=True),
    "tls": Path(TLS, proxied=True, keyed=True),
    "clocks": Path(keyed=True, clocks=True),
}
OF_RANKS = {
    "shared memory": Path(keyed=True),
    "messages": Path(MESSAGES),
    "tcp": Path(TCP, proxied=True),
    "tls": Path(TLS, proxied=True, keyed=True),
    "clocks": Path(MESSAGES, clocks=True),
}
