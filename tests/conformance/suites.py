"""The table of suites, and the making of a runnable class from a suite and a backend.

PyTorch keeps its suites as mixins; `build` joins one with the fixture of a backend and the launcher.
The classes are made on demand and are attributes of this module, so that a spawned rank finds them
by name (`conformance.suites.WeftRpcTest`) and imports no more than its own suite.
"""

from __future__ import annotations

import importlib
import unittest
from dataclasses import dataclass

from conformance.cases import Case

_FOLDER = "torch.testing._internal.distributed"
_PREFIXES = {"WEFT": "Weft", "TENSORPIPE": "TensorPipe"}


@dataclass(frozen=True)
class Suite:
    """One suite: its name here, where PyTorch keeps it, and what Weft says in other words."""

    name: str
    group: str  # generic, agent (written for TensorPipe's agent), faulty, process_group or cuda
    module: str
    upstream: str
    forms: str = ""  # a class mixed in for Weft only; without a module's name it is one of forms.py
    weft_only: bool = False  # it asks something that only Weft has


def _generic(module: str, name: str) -> Suite:
    return Suite(name, "generic", module, name)


def _of_wefts_remote_module(name: str, upstream: str, forms: str, group: str = "generic") -> Suite:
    module = "nn.api.remote_module_test"
    return Suite(name, group, module, upstream, f"weft_remote_module.{forms}", weft_only=True)


def _cuda(module: str, name: str, upstream: str = "", forms: str = "") -> Suite:
    return Suite(name, "cuda", module, upstream or name, forms)


SUITES = (
    _generic("rpc.rpc_test", "RpcTest"),
    _generic("rpc.examples.parameter_server_test", "ParameterServerTest"),
    _generic("rpc.dist_autograd_test", "DistAutogradTest"),
    _generic("rpc.dist_optimizer_test", "DistOptimizerTest"),
    _generic("rpc.jit.rpc_test", "JitRpcTest"),
    _generic("rpc.jit.dist_autograd_test", "JitDistAutogradTest"),
    _generic("nn.api.remote_module_test", "RemoteModuleTest"),
    _generic("nn.api.remote_module_test", "ThreeWorkersRemoteModuleTest"),
    _of_wefts_remote_module("OwnRemoteModuleTest", "RemoteModuleTest", "WeftClassForms"),
    _of_wefts_remote_module(
        "OwnThreeWorkersRemoteModuleTest", "ThreeWorkersRemoteModuleTest", "WeftClassSentForms"
    ),
    _generic("ddp_under_dist_autograd_test", "DdpUnderDistAutogradTest"),
    _generic("ddp_under_dist_autograd_test", "DdpComparisonTest"),
    _generic("rpc.examples.reinforcement_learning_rpc_test", "ReinforcementLearningRpcTest"),
    Suite("AgentRpcTest", "agent", "rpc.rpc_test", "TensorPipeAgentRpcTest", "AgentRpcForms"),
    Suite(
        "AgentDistAutogradTest",
        "agent",
        "rpc.dist_autograd_test",
        "TensorPipeAgentDistAutogradTest",
    ),
    Suite(
        "FaultyAgentRpcTest",
        "faulty",
        "rpc.faulty_agent_rpc_test",
        "FaultyAgentRpcTest",
        "FaultyOptionsForms",
    ),
    Suite(
        "FaultyAgentDistAutogradTest",
        "faulty",
        "rpc.dist_autograd_test",
        "FaultyAgentDistAutogradTest",
        "FaultyOptionsForms",
    ),
    Suite("JitFaultyAgentRpcTest", "faulty", "rpc.jit.rpc_test_faulty", "JitFaultyAgentRpcTest"),
    Suite("DistributedTest", "process_group", "distributed_test", "DistributedTest"),
    _cuda("rpc.rpc_test", "CudaRpcTest"),
    _cuda(
        "rpc.rpc_test",
        "AgentCudaRpcTest",
        "TensorPipeAgentCudaRpcTest",
        "cuda_forms.AgentCudaRpcForms",
    ),
    _cuda("rpc.dist_autograd_test", "CudaDistAutogradTest"),
    _cuda("rpc.dist_autograd_test", "AgentCudaDistAutogradTest", "TensorPipeCudaDistAutogradTest"),
    _cuda("nn.api.remote_module_test", "CudaRemoteModuleTest"),
    _of_wefts_remote_module(
        "OwnCudaRemoteModuleTest", "CudaRemoteModuleTest", "WeftClassCudaForms", "cuda"
    ),
)
_BY_NAME = {suite.name: suite for suite in SUITES}


def build(suite: Suite, backend: str) -> type[unittest.TestCase]:
    """The runnable class for `suite` on `backend`; raises ImportError or AttributeError when absent."""
    name = _PREFIXES[backend] + suite.name
    if name in globals():
        return globals()[name]
    from conformance import fixtures, launcher, process_groups

    if suite.group == "process_group":
        made = process_groups.build(backend, name, launcher.RankLauncher, __name__)
        globals()[name] = made
        return made
    faulty = suite.group == "faulty"
    upstream = getattr(importlib.import_module(f"{_FOLDER}.{suite.module}"), suite.upstream)
    bases = [upstream, fixtures.fixture(backend, faulty=faulty), launcher.RankLauncher]
    if backend == "WEFT" and suite.forms:
        module, _, form = suite.forms.rpartition(".")
        bases.insert(0, getattr(importlib.import_module(f"conformance.{module or 'forms'}"), form))
    made = type(name, tuple(bases), {"__module__": __name__})
    globals()[name] = made
    return made


def __getattr__(name: str) -> type[unittest.TestCase]:
    for backend, prefix in _PREFIXES.items():
        suite = _BY_NAME.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if suite is not None:
            return build(suite, backend)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(backend: str) -> tuple[list[Case], list[str]]:
    """Every test on `backend`, and a line for each suite that this version of PyTorch lacks."""
    from conformance import cuda_in_forks

    cuda_in_forks.prepare()
    cases: list[Case] = []
    missing: list[str] = []
    for suite in SUITES:
        if suite.weft_only and backend != "WEFT":
            continue
        try:
            made = build(suite, backend)
        except (ImportError, AttributeError) as error:
            missing.append(f"{suite.name} ({_FOLDER}.{suite.module}): {error}")
            continue
        names = unittest.TestLoader().getTestCaseNames(made)
        cases += [Case(suite.name, suite.group, method, made) for method in names]
    return cases, missing
