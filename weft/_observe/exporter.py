"""An HTTP server for Prometheus and weft.top (``WEFT_METRICS``)."""

from __future__ import annotations

import ipaddress
import json
import os
import threading
from http.server import BaseHTTPRequestHandler
from typing import cast

from weft._observe.group import ask_all
from weft._observe.http_server import PATIENCE, BoundedServer
from weft._observe.prometheus import metrics_text
from weft._observe.state import own_stacks, own_state
from weft._torch.log import inform, warn
from weft._torch.request_policy import register_function
from weft._torch.threads import started

_mutex = threading.Lock()
_server: tuple[int, BoundedServer] | None = None  # with the process that serves


def start() -> None:
    """Serves ``/metrics``, ``/group`` and ``/stacks`` from now on, if WEFT_METRICS is set.

    A second call changes nothing. Under the policy ``registered`` peers may ask for this worker's
    state and stacks from now on.

    An address that is taken is a warning: several workers of a host may have the same variable.
    """
    global _server
    wanted = wanted_address()
    if wanted is None:
        return
    host, text = wanted[0], os.environ["WEFT_METRICS"]
    with _mutex:
        if _server is not None and _server[0] == os.getpid():
            return
        register_function(own_state)
        register_function(own_stacks)
        try:
            server = BoundedServer(wanted, _Handler)
        except OSError as error:
            warn(f"no metrics are served at {text} (WEFT_METRICS): {error}")
            return
        _server = os.getpid(), server
        # A forked child that outlives this process would keep the port.
        os.register_at_fork(after_in_child=server.socket.close)
    thread = threading.Thread(target=server.serve_forever, name="weft-metrics", daemon=True)
    if not started(thread, "no metrics are served"):
        server.server_close()
        with _mutex:
            _server = None  # the next one to join tries again
        return
    own, port = server.server_address[:2]
    shown = f"[{host}]" if ":" in host else host
    inform(f"metrics are served at http://{shown}:{port}/metrics")
    if not ipaddress.ip_address(str(own).partition("%")[0]).is_loopback:
        warn(
            f"whoever reaches {text} (WEFT_METRICS) reads this group's metrics and the stacks of "
            "its threads: there is no password. Let only the monitoring reach it, or serve at "
            f"127.0.0.1:{port}",
        )


def address() -> tuple[str, int] | None:
    """Where the figures are served; None where they are not."""
    if _server is None or _server[0] != os.getpid():
        return None
    host, port = _server[1].server_address[:2]
    return str(host), int(port)


def wanted_address() -> tuple[str, int] | None:
    """Where WEFT_METRICS says that the figures are to be served; None: nowhere."""
    text = os.environ.get("WEFT_METRICS")
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"WEFT_METRICS must be host:port, got {text!r}")
    return host.strip("[]"), int(port)


_PAGES = {
    "/metrics": ("text/plain; version=0.0.4; charset=utf-8", metrics_text),
    "/group": ("application/json", lambda: json.dumps(ask_all(own_state))),
    "/stacks": ("application/json", lambda: json.dumps(ask_all(own_stacks))),
}


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Answers each of the pages; ``/`` is ``/metrics``."""
        cast(BoundedServer, self.server).heard(self.connection)
        path = self.path.partition("?")[0]
        page = _PAGES.get("/metrics" if path == "/" else path)
        if page is None:
            self.send_error(404)
            return
        content_type, make = page
        body = make().encode()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
