"""The server of WEFT_METRICS among those who only take its connections."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from waiting import wait_until

from weft._observe import http_server

PATIENCE = 10.0
MOST = 16  # connections, as the security guide says
_answering = threading.Event()
_go_on = threading.Event()


class Page(BaseHTTPRequestHandler):
    timeout = 10 * PATIENCE  # so that it is the server that hangs up

    def do_GET(self) -> None:
        self.server.heard(self.connection)
        if self.path == "/slow":
            _answering.set()
            assert _go_on.wait(PATIENCE)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"the page")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def place() -> Iterator[tuple[str, int]]:
    server = http_server.BoundedServer(("127.0.0.1", 0), Page)
    serving = threading.Thread(target=server.serve_forever, args=(0.02,))
    serving.start()
    yield server.server_address
    server.shutdown()
    server.server_close()
    serving.join()


def ask(place: tuple[str, int], path: str = "/") -> bytes:
    with urllib.request.urlopen(f"http://{place[0]}:{place[1]}{path}", timeout=PATIENCE) as answer:
        return answer.read()


def test_it_asks_no_dns_for_its_name(monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getfqdn", asked.append)
    http_server.BoundedServer(("127.0.0.1", 0), Page).server_close()
    assert asked == []


def test_a_forked_child_does_not_keep_the_port():
    """The worker is killed and started again while a process that it has forked lives."""
    worker = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "WEFT_METRICS": "127.0.0.1:0"},
    )
    with worker:
        port = int(worker.stdout.readline())
        worker.kill()
        worker.wait()
        http_server.BoundedServer(("127.0.0.1", port), Page).server_close()
        worker.stdin.close()  # ends the child


FORKS = """
import os, signal, sys
from weft._observe import exporter

exporter.start()
_, port = exporter.address()
if os.fork() == 0:
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


def ended(stranger: socket.socket) -> bool:
    """Whether the server hangs up on it."""
    with contextlib.suppress(ConnectionResetError):
        return stranger.recv(1) == b""
    return True


def test_200_silent_clients_and_a_scrape_that_answers(place):
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(place, PATIENCE)) for _ in range(200)
        ]
        assert ask(place) == b"the page"
        assert all(ended(one) for one in strangers[: 200 - MOST])
        wait_until(
            lambda: threading.active_count() <= before + MOST,
            lambda: f"{threading.active_count()} threads, {before} before",
            PATIENCE,
            0.02,
        )


def test_silent_clients_do_not_cut_off_an_answer(place):
    answers: list[bytes] = []
    slow = threading.Thread(target=lambda: answers.append(ask(place, "/slow")))
    slow.start()
    assert _answering.wait(PATIENCE)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * MOST):
            stack.enter_context(socket.create_connection(place, PATIENCE))
        assert ask(place) == b"the page"
        _go_on.set()
        slow.join()
    assert answers == [b"the page"]


def test_one_that_speaks_byte_by_byte_has_its_time_and_no_more(place, monkeypatch):
    monkeypatch.setattr(http_server, "PATIENCE", 0.3)
    with socket.create_connection(place, PATIENCE) as stranger:
        begun = time.monotonic()
        stranger.settimeout(0.05)
        while time.monotonic() < begun + PATIENCE:
            try:
                stranger.send(b"G")
                assert stranger.recv(1) == b""
                break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() < begun + PATIENCE, "it may speak on"


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_who_serves_to_the_network_is_warned(host: str, warned: bool):
    program = "from weft._observe import exporter; exporter.start()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "WEFT_METRICS": f"{host}:0"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    assert ("there is no password" in done.stderr) == warned, done.stderr
