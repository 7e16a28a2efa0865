"""PyTorch's suites of RemoteModule, asked of `weft.RemoteModule` instead of PyTorch's class.

The rank puts Weft's class under the name that the suites use. What PyTorch's class refuses and Weft's
does cannot pass as written: those tests are said again here, each with what Weft promises instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import nn
from torch.testing._internal.dist_utils import dist_init, worker_name

_SUITES = "torch.testing._internal.distributed.nn.api.remote_module_test"


def _of_weft(*arguments: Any) -> Any:
    return importlib.import_module("weft").RemoteModule(*arguments)


def attributes(remote_module: Any) -> dict[str, Any]:
    """Those that PyTorch's test asks for, of a module that was sent."""
    return {name: getattr(remote_module, name) for name in ("on", "device", "is_device_map_set")}


def run_scripted(scripted: Any, *args: Any) -> Any:
    """Runs a scripted module that was sent."""
    return scripted(*args)


class _WithWeftsClass:
    """What all suites of RemoteModule have in common."""

    @classmethod
    def _run(cls, *args: Any, **kwargs: Any) -> None:
        importlib.import_module(_SUITES).RemoteModule = importlib.import_module("weft").RemoteModule
        super()._run(*args, **kwargs)  # type: ignore[misc]

    @staticmethod
    def _create_remote_module_iter(remote_device: str, modes: Any = None) -> Iterator[Any]:
        """As PyTorch's, without `_module_interface_cls`: the types are those of `forward` itself."""
        suites = importlib.import_module(_SUITES)
        mode = suites.ModuleCreationMode
        modes = tuple(mode) if modes is None else modes
        options = ((1,), {"first_kwarg": 2})
        if mode.MODULE_CTOR in modes:
            yield _of_weft(remote_device, suites.MyModule, *options)
        if mode.MODULE_CTOR_WITH_INTERFACE in modes:
            made = _of_weft(remote_device, suites.create_scripted_module, *options)
            yield torch.jit.script(made)

    def _one(self, place: int = 1) -> Any:
        suites = importlib.import_module(_SUITES)
        return _of_weft(worker_name(place), suites.MyModule, (1,), {"first_kwarg": 2})


class WeftClassForms(_WithWeftsClass):
    """Stands in for those tests of RemoteModuleTest that say what PyTorch's class cannot do."""

    @dist_init
    def test_unsupported_methods(self) -> None:
        """A whole nn.Module: each method that PyTorch's class refuses does what a module's does."""
        if self.rank != 0:
            return
        remote_module = self._one()
        for own in ("parameters", "named_parameters", "buffers", "named_buffers"):
            self.assertEqual(list(getattr(remote_module, own)()), [])  # it has none in this process
        for below in ("children", "named_children"):
            self.assertEqual(list(getattr(remote_module, below)()), [])
        self.assertEqual(list(remote_module.modules()), [remote_module])
        self.assertEqual(list(remote_module.named_modules()), [("", remote_module)])

        seen: list[str] = []
        remote_module.apply(lambda module: seen.append(type(module).__name__))
        self.assertEqual(seen, ["RemoteModule"])
        remote_module.register_forward_pre_hook(lambda module, args: seen.append("before"))
        remote_module.register_forward_hook(lambda module, args, out: seen.append("after"))
        remote_module(torch.ones(1), 2)
        self.assertEqual(seen[1:], ["before", "after"])
        remote_module.register_full_backward_hook(lambda module, grad_in, grad_out: None)

        name = "param1"
        self.assertEqual(list(remote_module.state_dict()), [name])
        remote_module.load_state_dict({name: torch.full((1,), 3.0)})
        self.assertEqual(remote_module.state_dict()[name], torch.full((1,), 3.0))
        dtypes = {"double": torch.float64, "bfloat16": torch.bfloat16, "half": torch.float16}
        for method, dtype in (dtypes | {"float": torch.float32}).items():
            self.assertIs(getattr(remote_module, method)(), remote_module)
            self.assertEqual(remote_module.state_dict()[name].dtype, dtype)
        remote_module.type(torch.float64)
        self.assertEqual(remote_module.state_dict()[name].dtype, torch.float64)
        remote_module.to("cpu", dtype=torch.float32)
        self.assertEqual(remote_module.state_dict()[name].dtype, torch.float32)
        self.assertIs(remote_module.cpu(), remote_module)  # the device stays: it was chosen there

        remote_module.requires_grad_(False)
        (parameter,) = remote_module.remote_parameters()
        self.assertFalse(parameter.to_here().requires_grad)
        remote_module.requires_grad_()
        remote_module.zero_grad()
        self.assertEqual(remote_module.remote_grads(), {name: None})
        self.assertIn("worker1", remote_module.extra_repr())
        self.assertIs(remote_module.share_memory(), remote_module)

    @dist_init
    def test_what_a_remote_module_cannot_own(self) -> None:
        """Parts that would live here: refused as PyTorch's class does, with what to do instead."""
        if self.rank != 0:
            return
        remote_module = self._one()
        refused = {
            "register_buffer": ("buffer", torch.ones(5)),
            "register_parameter": ("param", nn.Parameter(torch.ones(1))),
            "add_module": ("empty", None),
        }
        for method, arguments in refused.items():
            with self.assertRaisesRegex(
                ValueError, f"Method ``{method}`` not supported for RemoteModule"
            ):
                getattr(remote_module, method)(*arguments)

    @dist_init
    def test_remote_module_py_pickle_not_supported_script(self) -> None:
        """`torch.save` of a scripted module is refused in torch's words; `torch.jit.save` is meant."""
        if self.rank != 0:
            return
        suites = importlib.import_module(_SUITES)
        scripted = next(
            self._create_remote_module_iter(
                worker_name(1), [suites.ModuleCreationMode.MODULE_CTOR_WITH_INTERFACE]
            )
        )
        with suites.TemporaryFileName() as file:
            with self.assertRaisesRegex(RuntimeError, "Tried to serialize object"):
                torch.save(scripted, file)
            torch.jit.save(scripted, file)
            loaded = torch.jit.load(file)
            self.assertEqual(loaded(torch.ones(1), 2, "3"), ("3", 2, torch.ones(1)))


class WeftClassSentForms(_WithWeftsClass):
    """Stands in for those tests of ThreeWorkersRemoteModuleTest that look inside PyTorch's class."""

    @dist_init
    def test_send_remote_module_over_the_wire(self) -> None:
        """The attributes of its own that PyTorch's test lists are other ones here."""
        if self.rank != 0:
            return
        suites = importlib.import_module(_SUITES)
        remote_module = self._one()
        found = rpc.rpc_sync(worker_name(2), attributes, (remote_module,))
        expected = {"on": "worker1", "device": "cpu", "is_device_map_set": False}
        self.assertEqual(found, expected)
        args = (torch.ones(1), 2, "3")
        for way in (suites.remote_forward, suites.remote_forward_async):
            result = rpc.rpc_sync(worker_name(2), way, (remote_module, args))
            self.assertEqual(result, tuple(reversed(args)))

    @dist_init
    def test_send_remote_module_over_the_wire_script_not_supported(self) -> None:
        """It is supported: the scripted module is callable where it comes."""
        if self.rank != 0:
            return
        suites = importlib.import_module(_SUITES)
        for scripted in self._create_remote_module_iter(
            worker_name(1), [suites.ModuleCreationMode.MODULE_CTOR_WITH_INTERFACE]
        ):
            args = (torch.ones(1), 2, "3")
            result = rpc.rpc_sync(worker_name(2), run_scripted, (scripted, *args))
            self.assertEqual(result, tuple(reversed(args)))


class WeftClassCudaForms(_WithWeftsClass):
    """CudaRemoteModuleTest holds as it is written."""
