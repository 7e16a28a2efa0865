"""A network in user space: TCP proxies between workers, which do to their bytes what networks do.

Every connection that a worker makes goes through a proxy of its own (proxied_store.py sees to it).
The network delays, throttles, holds back, damages or resets what its connections carry, all of them at
once. It needs no rights and nothing of the kernel.

Threads: one of its own; the methods may be called from any.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections import deque

HANDSHAKE_BYTES = 256 + 72  # in each direction; nothing is damaged before
MOST_QUEUED = 1 << 20  # bytes that a connection holds in each direction; then it reads no more
PIECE = 1 << 16


class Flow:
    """One direction of a connection: what was read, and when it may go on."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.queue: deque[tuple[float, memoryview]] = deque()
        self.queued = self.carried = 0
        self.ended = self.passed_on = False
        self.free_at = 0.0  # when the bytes sent so far have left at the rate given


class Network:
    """All proxies of a fleet, and what is wrong with them just now."""

    def __init__(self) -> None:
        self.delay = 0.0  # seconds, each way
        self.rate = 0  # bytes per second and direction; 0: any
        self.held = False  # a black hole: nothing passes; TCP repeats it when the hole is gone
        self.damage = 0.0  # the chance that a piece has one bit flipped
        self.random = random.Random(0)
        self.connections_made = self.resets = self.pieces_damaged = 0
        self._lock = threading.Lock()
        self._listeners: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
        self._links: list[tuple[Flow, Flow]] = []
        self._control = self._listen()
        self.port = self._control.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="chaos network")
        self._thread.start()

    def change(self, **how: float) -> None:
        """Sets `delay`, `rate`, `held`, `damage`; from now on."""
        for name, value in how.items():
            setattr(self, name, value)
        self._wake.send(b".")

    def reset(self) -> int:
        """An RST to both ends of every connection; how many there were."""
        with self._lock:
            links, self._links = self._links, []
        for flow, _ in links:
            for end in (flow.source, flow.sink):
                with contextlib.suppress(OSError):  # it has just ended by itself
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()
        self.resets += len(links)
        self._wake.send(b".")
        return len(links)

    def close(self) -> None:
        self._ending = True
        self._wake.send(b".")
        self._thread.join()
        self.reset()
        for listener in [self._control, *(one for one, _ in self._listeners.values())]:
            listener.close()
        self._wake.close()
        self._woken.close()

    @staticmethod
    def _listen() -> socket.socket:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        return listener

    def _run(self) -> None:
        while not self._ending:
            with self._lock:
                links = list(self._links)
            ready, patience = self._wait(links)
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if self._control.fileno() in ready:
                self._answer()
            for descriptor in list(self._listeners):
                if descriptor in ready:
                    self._connect(descriptor)
            for link in links:
                self._carry(link)

    def _wait(self, links: list[tuple[Flow, Flow]]) -> tuple[set[int], float]:
        """Until something can be read or written, or a held piece is due."""
        poll, now, patience = select.poll(), time.monotonic(), 1.0
        events: dict[int, int] = {}
        for listener in [self._control, self._woken, *(s for s, _ in self._listeners.values())]:
            events[listener.fileno()] = select.POLLIN
        for flow in (flow for link in links for flow in link):
            if self.held:
                continue
            if not flow.ended and flow.queued < MOST_QUEUED:
                events[flow.source.fileno()] = events.get(flow.source.fileno(), 0) | select.POLLIN
            if flow.queue and flow.queue[0][0] <= now:
                events[flow.sink.fileno()] = events.get(flow.sink.fileno(), 0) | select.POLLOUT
            elif flow.queue:
                patience = min(patience, flow.queue[0][0] - now)
        for descriptor, mask in events.items():
            if descriptor >= 0:
                poll.register(descriptor, mask)
        return {d for d, _ in poll.poll(max(0.0, patience) * 1000)}, patience

    def _answer(self) -> None:
        """A worker asks for a way to `HOST PORT`; it gets the port of a proxy."""
        asker, _ = self._control.accept()
        with asker, contextlib.suppress(OSError):
            asker.settimeout(5)
            host, port = asker.recv(300).decode().split()
            target = (host, int(port))
            with contextlib.suppress(OSError), socket.create_connection(target, timeout=5):
                asker.sendall(str(self._proxy_to(target)).encode())
                return
            asker.sendall(port.encode())  # nobody listens there: the asker finds that out itself

    def _proxy_to(self, target: tuple[str, int]) -> int:
        for known, there in self._listeners.values():
            if there == target:
                return known.getsockname()[1]
        listener = self._listen()
        self._listeners[listener.fileno()] = (listener, target)
        return listener.getsockname()[1]

    def _connect(self, descriptor: int) -> None:
        listener, target = self._listeners[descriptor]
        client, _ = listener.accept()
        server = socket.socket()
        try:
            server.connect(target)
        except OSError:  # nobody listens there any more, so nobody listens here either
            del self._listeners[descriptor]
            for end in (listener, client, server):
                end.close()
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._links.append((Flow(client, server), Flow(server, client)))
            self.connections_made += 1

    def _carry(self, link: tuple[Flow, Flow]) -> None:
        if self.held:
            return
        try:
            for flow in link:
                self._read(flow)
                self._write(flow)
            if not all(flow.passed_on for flow in link):
                return
        except OSError:
            pass
        with self._lock:
            if link in self._links:
                self._links.remove(link)
        for end in (link[0].source, link[0].sink):
            end.close()

    def _read(self, flow: Flow) -> None:
        if flow.ended or flow.queued >= MOST_QUEUED:
            return
        try:
            piece = bytearray(flow.source.recv(PIECE))
        except BlockingIOError:
            return
        if not piece:
            flow.ended = True
            return
        flow.carried += len(piece)
        greeted = flow.carried - len(piece) > HANDSHAKE_BYTES
        if self.damage and greeted and self.random.random() < self.damage:
            piece[self.random.randrange(len(piece))] ^= 1 << self.random.randrange(8)
            self.pieces_damaged += 1
        due = time.monotonic() + self.delay
        if self.rate:
            due = flow.free_at = max(due, flow.free_at) + len(piece) / self.rate
        flow.queue.append((due, memoryview(piece)))
        flow.queued += len(piece)

    def _write(self, flow: Flow) -> None:
        while flow.queue and flow.queue[0][0] <= time.monotonic():
            due, piece = flow.queue.popleft()
            try:
                sent = flow.sink.send(piece)
            except BlockingIOError:
                sent = 0
            flow.queued -= sent
            if sent < len(piece):
                flow.queue.appendleft((due, piece[sent:]))
                return
        if flow.ended and not flow.queue and not flow.passed_on:
            flow.passed_on = True
            with contextlib.suppress(OSError):
                flow.sink.shutdown(socket.SHUT_WR)
