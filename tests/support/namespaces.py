"""Hosts: network namespaces of this machine, each with a cable to each other one.

Needs root; skips, with the reason, where namespaces are not permitted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator

import pytest


def run(command: str) -> None:
    """A command of ``ip``."""
    subprocess.run(command.split(), check=True, capture_output=True, timeout=20)


def address(host: int) -> str:
    return f"10.213.78.{host + 1}"


@contextlib.contextmanager
def joined_hosts(count: int) -> Iterator[list[str]]:
    """Their names, for ``ip netns exec``. Host A's end of the cable to host B is the device ``toB``."""
    names = [f"weft{os.getpid() % 100000}p{host}" for host in range(count)]
    # Takes them away when this process lets go of the pipe, be it by being killed.
    removal = "; ".join(f"ip netns del {name}" for name in names)
    keeper = subprocess.Popen(
        ["sh", "-c", f"cat >/dev/null; {removal}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        try:
            for name in names:
                run(f"ip netns add {name}")
                run(f"ip -n {name} link set lo up")
            for a, b in itertools.combinations(range(count), 2):
                run(f"ip -n {names[a]} link add to{b} type veth peer name to{a} netns {names[b]}")
                for here, there in ((a, b), (b, a)):
                    run(f"ip -n {names[here]} addr add {address(here)}/32 dev to{there}")
                    run(f"ip -n {names[here]} link set to{there} up")
                    run(f"ip -n {names[here]} route add {address(there)}/32 dev to{there}")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this machine permits no network namespaces here: {error}")
        yield names
    finally:
        keeper.communicate(timeout=20)
