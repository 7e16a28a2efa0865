"""An HTTP server that strangers may reach: they take little of this process, and not for long."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from weft._torch.log import warn

PATIENCE = 5.0  # seconds for a request to come, and for its answer to be taken
MOST = 16  # connections at once


class BoundedServer(ThreadingHTTPServer):
    """A thread for each connection, of which there are at most MOST.

    When one more comes, the connection hangs up that has owed its request longest; if all are
    being answered, the new one. Handlers call :meth:`heard` once they have their request. Any
    thread may call the members that are named here.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._mutex = threading.Lock()
        # Oldest first: until when the request is to come; None: it is here.
        self._open: dict[object, float | None] = {}
        super().__init__(place, handler)

    def server_bind(self) -> None:
        """Without the name of this host, which HTTPServer asks the DNS for, and nobody here for it."""
        TCPServer.server_bind(self)

    def heard(self, request: object) -> None:
        """The whole request has come."""
        with self._mutex:
            if request in self._open:
                self._open[request] = None

    def process_request(self, request, client_address) -> None:
        """Starts its thread, if there is room."""
        with self._mutex:
            owing = [one for one, until in self._open.items() if until is not None]
            full = len(self._open) >= MOST
            if full and owing:
                self._hang_up(owing[0])
            if not full or owing:
                self._open[request] = time.monotonic() + PATIENCE
        if full and not owing:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Hangs up on those whose request is late. Between two connections, or twice a second."""
        now = time.monotonic()
        with self._mutex:
            late = [one for one, until in self._open.items() if until is not None and until < now]
            for one in late:
                self._hang_up(one)

    def shutdown_request(self, request) -> None:
        """The connection has ended."""
        with self._mutex:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request, client_address) -> None:
        """Says what failed here; one who hangs up or does not read is no failure."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            warn(f"a request for metrics failed (WEFT_METRICS): {error!r}")

    # With the mutex, so that it is still open: its thread hears the end, and closes it.
    def _hang_up(self, request) -> None:
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
