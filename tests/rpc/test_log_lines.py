"""The thread that hands C++'s log lines to Python's logging, where that is not easy."""

from __future__ import annotations

import subprocess
import sys

BOUND = 100  # seconds; importing torch takes long on a busy machine


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND
    )


def test_a_handler_that_raises_loses_only_its_line():
    ended = run("""
import logging
from weft import _C
from weft._observe import logs

class Handler(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
        if record.getMessage() == "one":
            raise RuntimeError("this handler takes no one")

logging.getLogger().addHandler(Handler())
logs.connect()
for text in ("one", "two", "three"):
    _C._log(2, text)
""")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["one", "two", "three"]
    assert "RuntimeError: this handler takes no one" in ended.stderr


def test_a_child_forked_while_a_line_is_kept_logs_and_ends():
    """The child has copied the queue's mutex, which another thread held: a long line takes long."""
    ended = run("""
import logging, os, select, signal, sys, threading, time
from weft import _C
from weft._observe import logs

class Handler(logging.Handler):
    def emit(self, record):
        if record.getMessage() == "of the child":
            print(record.getMessage(), flush=True)

def in_child():
    logs.connect()
    _C._log(2, "of the child")
    sys.exit()  # which closes the log

logging.getLogger().addHandler(Handler())
logs.connect()
line = "x" * (1 << 25)
for tenth in range(16):
    logging_thread = threading.Thread(target=_C._log, args=(2, line))
    logging_thread.start()
    time.sleep(0.01 * tenth)
    child = os.fork()
    if child == 0:
        in_child()
    end = os.pidfd_open(child)
    has_ended = select.select([end], [], [], 10)[0]
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and has_ended, tenth
    logging_thread.join()
""")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n") == ["of the child"] * 16 + [""]
