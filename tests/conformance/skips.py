"""Tests that are not run, and tests that may fail now and then: each with its reason, in words.

Keys are `Suite.test`, as `run.py --list` prints them; the entries of "*" hold for every backend.
"""

from __future__ import annotations

ATTEMPTS = 3  # how often a known-flaky test may run before it counts as failed

_RACES_ITSELF = (
    "the test fills a tensor on one stream that it has zeroed on another, which the emulated CUDA "
    "reports; it is about torch.futures.Future only"
)

SKIPS: dict[str, dict[str, str]] = {
    "*": {},
    "WEFT": {
        "AgentCudaRpcTest.test_cuda_future_callback_changes_devices": _RACES_ITSELF,
        "AgentCudaRpcTest.test_cuda_future_value_on_bad_device": _RACES_ITSELF,
    },
    "TENSORPIPE": {},
}

# Retried, and told: a test that passed on a later attempt is listed at the end of the run.
FLAKY: dict[str, dict[str, str]] = {
    "*": {},
    "WEFT": {},
    "TENSORPIPE": {
        "RpcTest.test_profiler_rpc_key_names": (
            "after a profiled call torch leaves the profiler's observer on the thread that served "
            "it; the next profiled call on that thread records everything twice, and the pairs are "
            "dropped. TensorPipe's threads take turns, so the test passes unless one is taken twice"
        ),
    },
}


def skip_reason(backend: str, name: str) -> str | None:
    """Why `name` is not run on `backend`, or None when it is."""
    return (SKIPS["*"] | SKIPS[backend]).get(name)


def attempts(backend: str, name: str) -> int:
    """How many attempts `name` has on `backend`."""
    return ATTEMPTS if name in FLAKY["*"] | FLAKY[backend] else 1
