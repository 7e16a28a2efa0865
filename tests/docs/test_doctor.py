"""The doctor: content with a machine that is well, and not with what is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable

import pytest

from weft import doctor
from weft.doctor import Finding

KEY = "ab" * 32 + "\n"


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level for finding in findings]


@pytest.mark.timeout(240)
def test_it_is_content_here():
    """As a user starts it, with two real processes that call each other; it bounds itself."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MASTER_ADDR", "RANK")}
    run = subprocess.run(
        [sys.executable, "-m", "weft.doctor"],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "two workers called each other" in run.stdout
    assert "WEFT_AUTH_KEY_FILE" in run.stdout


@pytest.mark.timeout(240)
def test_a_reader_may_stop_early():
    """As `doctor | head` does; here the reader is gone before the first line is written."""
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [sys.executable, "-u", "-m", "weft.doctor", "--no-self-test"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
    )
    os.close(writing)
    assert run.returncode == 0, run.stderr
    assert "BrokenPipeError" not in run.stderr


def test_it_fails_when_a_check_does(monkeypatch, capsys):
    monkeypatch.setenv("MASTER_ADDR", "no.such.host.invalid")
    assert doctor.main(["--no-self-test"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  MASTER_ADDR no.such.host.invalid cannot be resolved" in shown
    assert "two workers" not in shown


@pytest.mark.parametrize("port", ["x", "70000", "-1"])
def test_a_master_port_that_is_none_is_said(monkeypatch, port):
    monkeypatch.setenv("MASTER_PORT", port)
    found = [finding.text for finding in doctor.settings() if finding.level == "FAIL"]
    assert found == [f"MASTER_PORT must be a port, from 0 to 65535, got '{port}'"]


@pytest.mark.parametrize(
    ("content", "mode", "level", "says"),
    [
        (KEY, 0o600, "ok", "key file"),
        (f"  {KEY}\n\n", 0o400, "ok", "key file"),
        (KEY, 0o640, "ok", "key file"),
        (KEY, 0o620, "FAIL", "chmod g-w"),
        (KEY, 0o604, "FAIL", "chmod 600"),
        (KEY, 0o602, "FAIL", "chmod 600"),
        (KEY[:40], 0o600, "FAIL", "64 hexadecimal digits"),
        (KEY * 2, 0o600, "FAIL", "64 hexadecimal digits"),
        ("x" * 64, 0o600, "FAIL", "64 hexadecimal digits"),
        ("0" * 64, 0o600, "FAIL", "must not be all zeros"),
        ("\udcff" * 64, 0o600, "FAIL", "64 hexadecimal digits"),
        ("", 0o600, "FAIL", "64 hexadecimal digits"),
    ],
)
def test_key_files(tmp_path, monkeypatch, content, mode, level, says):
    """The doctor says of a key file what init_rpc says."""
    import torch.distributed.rpc as rpc

    import weft

    path = tmp_path / "key"
    path.write_text(content, errors="surrogateescape")
    path.chmod(mode)
    monkeypatch.setenv("WEFT_AUTH_KEY_FILE", str(path))
    (finding,) = doctor.key_file()
    assert finding.level == level
    assert says in finding.text
    if level == "FAIL":
        with pytest.raises(RuntimeError, match=re.escape(finding.text)):
            weft.init_rpc("alone", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
        assert not rpc.api._is_current_rpc_agent_set()


@pytest.mark.parametrize("name", ["missing", "."])
def test_key_files_that_are_none(tmp_path, monkeypatch, name):
    monkeypatch.setenv("WEFT_AUTH_KEY_FILE", str(tmp_path / name))
    assert levels(doctor.key_file()) == ["FAIL"]


def test_master(monkeypatch):
    monkeypatch.delenv("WEFT_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert "reached from 127.0.0.1" in list(doctor.network())[1].text
    monkeypatch.setenv("WEFT_SOCKET_IFNAME", "lo")
    assert "WEFT_SOCKET_IFNAME=lo" in list(doctor.network())[1].text


def test_unknown_variables(monkeypatch):
    monkeypatch.setenv("WEFT_SOCKETIFNAME", "eth0")
    assert any("WEFT_SOCKETIFNAME" in finding.text for finding in doctor.unknown_variables())


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("WEFT_PEER_TIMEOUT", "fast", "must be a number of seconds"),
        ("WEFT_PEER_TIMEOUT", "0.1", "must be at least twice heartbeat_interval"),
        ("WEFT_METRICS", "abc", "must be host:port"),
        ("WEFT_HANG_REPORT", "x", "must be a number of seconds"),
        ("WEFT_REQUEST_POLICY", "scripts", "WEFT_REQUEST_POLICY must be one of"),
        ("WEFT_SOCKET_IFNAME", "nosuch9", "no network interface that is up has the name"),
        ("WEFT_SOCKET_IFNAME", "192.0.2.1", "or address '192.0.2.1'; this host has: lo 127.0.0.1"),
        ("WEFT_SOCKET_IFNAME", "127.0.0.2", "or address '127.0.0.2'"),
        ("TORCH_FR_BUFFER_SIZE", "many", "TORCH_FR_BUFFER_SIZE must be a whole number, got 'many'"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "2k", "must be a whole number, got '2k'"),
    ],
)
def test_values_that_a_worker_refuses(monkeypatch, variable, value, says):
    assert list(doctor.settings()) == []
    monkeypatch.setenv(variable, value)
    (finding,) = doctor.settings()
    assert finding.level == "FAIL" and says in finding.text


@pytest.mark.parametrize("value", ["lo", "127.0.0.1", "::1"])
def test_interfaces_that_there_are(monkeypatch, value):
    monkeypatch.setenv("WEFT_SOCKET_IFNAME", value)
    assert list(doctor.settings()) == []


def test_a_wish_for_weft_that_it_cannot_read_is_a_failed_check():
    run = subprocess.run(
        [sys.executable, "-m", "weft.doctor", "--no-self-test"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "WEFT_AS_DEFAULT": "true"},
    )
    assert run.returncode == 1
    assert "FAIL  WEFT_AS_DEFAULT must be 0 or 1, got 'true'" in run.stdout
    assert "Traceback" not in run.stderr


def test_a_self_test_that_fails(monkeypatch):
    monkeypatch.setattr(doctor, "SELF_TEST_PROGRAM", "raise SystemExit('no such luck')")
    (finding,) = doctor.self_test()
    assert finding.level == "FAIL"
    assert "no such luck" in finding.text


def test_a_self_test_that_hangs(monkeypatch):
    monkeypatch.setattr(doctor, "SELF_TEST_PROGRAM", "import signal; signal.pause()")
    monkeypatch.setattr(doctor, "SELF_TEST_SECONDS", 0.5)
    (finding,) = doctor.self_test()
    assert finding.level == "FAIL"
    assert "within 0.5 s" in finding.text


def test_a_self_test_whose_second_worker_writes_much(monkeypatch):
    """More than a pipe holds, while the first one waits for it."""
    program = """
import os, sys, time
met = sys.argv[2]
if sys.argv[1] == "1":
    sys.stderr.write("x" * (1 << 20))
    open(met, "w").close()
while not os.path.exists(met):
    time.sleep(0.01)
"""
    monkeypatch.setattr(doctor, "SELF_TEST_PROGRAM", program)
    monkeypatch.setattr(doctor, "SELF_TEST_SECONDS", 10)
    assert levels(doctor.self_test()) == ["ok"]
