"""``weft.RemoteModule``: a module that lives on another worker and is used like a local one."""

from __future__ import annotations

import contextlib
import functools
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.distributed import _remote_device
from torch.distributed.rpc import PyRRef as RRef
from torch.distributed.rpc.internal import _internal_rpc_pickler

from weft._remote import at_owner
from weft._remote.elsewhere import ModuleElsewhere
from weft._remote.stub import is_subclass, subclass
from weft._torch.uncompiled import uncompiled

_FORMS = (
    'a remote device is "worker", "worker/device", "rank:N" or "rank:N/device", e.g. "trainer0/cpu" or '
    '"rank:1/cuda:0"'
)
_PICKLE_ERROR = (
    "Cannot {} RemoteModule in python pickler. RemoteModule can only be pickled when using RPC"
)


def _parse(remote_device: str) -> tuple[str | int, str]:
    """The worker (its name or rank) and the device there."""
    try:
        parsed = _remote_device(remote_device)
    except (ValueError, RuntimeError) as error:
        raise type(error)(f"{error} ({_FORMS}; got {remote_device!r})") from None
    on = parsed.worker_name() if parsed.worker_name() is not None else parsed.rank()
    if on is None:
        on = rpc.get_worker_info().name  # "cpu": a device of this worker
    return on, str(parsed.device())


class _Methods:
    """Calls methods of the remote module by name."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("__"):
            raise AttributeError(method)
        return functools.partial(self._call, method)


class RemoteModule(ModuleElsewhere):
    """A module on another worker: calls run there, gradients flow through distributed autograd.

    It does everything that ``torch.distributed.nn.RemoteModule`` does, and is a whole ``nn.Module``
    besides: it may be part of a model whose ``state_dict()``, ``parameters()``, ``train()`` and ``repr()``
    work (its own parameters are remote and are not among ``parameters()``: give
    :meth:`remote_parameters` to a ``DistributedOptimizer``). ``torch.jit.script`` of it, or of a model that
    holds it, makes typed remote calls that can be saved and loaded, in C++ as well.

    The constructor does not wait for the owner: if ``module_cls`` raises there, the first call raises
    that error.

    ::

        linear = weft.RemoteModule("worker0/cpu", torch.nn.Linear, (2, 3))
        y = linear(torch.ones(2))

    Args:
        remote_device: ``"worker/device"`` or ``"rank:N/device"``; without a device, the CPU.
        module_cls: a class, or a function that returns a module; it is called at the worker.
        args: for ``module_cls``.
        kwargs: for ``module_cls``.
        name: publishes the module as ``worker/name`` (see :func:`weft.publish`), so that others, and saved
            models, can bind to it. A scripted model that holds an unnamed module works as long as the
            process that made it.
        scripted: whether the owner scripts the module: its calls then run without the GIL.
        timeout: of each call, in seconds; -1 for the group's.
        replace: whether the module may take a ``name`` that its owner already publishes: scripted and
            saved models then call this module. Otherwise the first call raises that the name is taken.

    Raises:
        AssertionError: RPC is not initialised.
        TypeError: ``module_cls`` is a module itself, or ``args`` is not a tuple.
        ValueError: ``remote_device`` has another form.
    """

    # These are not scripted or saved.
    __jit_ignored_attributes__ = (
        "module_rref",
        "on",
        "device",
        "name",
        "is_device_map_set",
        "_made_of",
    )
    __jit_unused_properties__ = ("remote", "remote_async")

    def __init__(
        self,
        remote_device: str,
        module_cls: Callable[..., nn.Module],
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        scripted: bool = False,
        timeout: float = -1.0,
        replace: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(module_cls, nn.Module):
            name_of = type(module_cls).__name__
            raise TypeError(
                f"module_cls must be a class or a function, which the worker calls, and got a module: give "
                f"the class and its arguments, as in RemoteModule({remote_device!r}, {name_of}, (…))"
            )
        if args is not None and (isinstance(args, str) or not isinstance(args, Sequence)):
            raise TypeError(
                f"args must be the tuple of module_cls's arguments, as in ({args!r},); got {args!r}"
            )
        self._bind(remote_device, name, timeout)
        made_of = (module_cls, tuple(args or ()), dict(kwargs or {}), self.device, scripted)
        self._made_of: tuple[Any, ...] | None = made_of
        self._make(replace)

    def make_again(self) -> None:
        """Makes a new module from the same class and arguments, at a worker that was restarted.

        If the worker still publishes the name, the new module replaces the old one under it.

        Raises:
            ValueError: this was made from an RRef, or came over RPC, and has no class and arguments.
        """
        if self._made_of is None:
            raise ValueError(
                f"this RemoteModule on '{self.on}' was made from an RRef: make the module again where "
                "its class and arguments are known"
            )
        with contextlib.suppress(RuntimeError):  # else the one before might be published after this
            self.module_rref._get_future().wait()
        self._make(replace=True)

    def _make(self, replace: bool) -> None:
        assert self._made_of is not None
        self.module_rref = rpc.remote(
            self.on, at_owner.create, args=(*self._made_of, self.name, replace)
        )

    @staticmethod
    def init_from_module_rref(
        remote_device: str,
        module_rref: RRef,
        *,
        name: str | None = None,
        timeout: float = -1.0,
    ) -> RemoteModule:
        """A remote module for a module that exists already.

        Args:
            remote_device: the module's owner, and the device there. If it names another worker, a
                warning says so, and calls go to the owner.
            module_rref: the module.
            name: the name under which it is published, if it is.
            timeout: of each call, in seconds; -1 for the group's.
        """
        made = RemoteModule.__new__(RemoteModule)
        nn.Module.__init__(made)
        made._bind(remote_device, name, timeout)
        made._made_of = None
        worker = module_rref.owner()
        if made.on not in (worker.name, worker.id):
            # PyTorch's class takes it (its own tests do this), and calls the owner, too.
            warnings.warn(
                f"the module lives on worker '{worker.name}' (rank {worker.id}), not on {made.on!r} as the "
                f"remote device {remote_device!r} says; its owner is called",
                stacklevel=2,
            )
            made.on = worker.name
        made.module_rref = module_rref
        return made

    def _bind(self, remote_device: str, name: str | None, timeout: float) -> None:
        if not rpc.api._is_current_rpc_agent_set():
            raise AssertionError("RemoteModule only works in RPC. Call init_rpc first.")
        self.on, self.device = _parse(remote_device)
        self.name = name
        self.timeout = float(timeout)
        agent = rpc.api._get_current_rpc_agent()
        info = agent.get_worker_info(self.on)
        self.is_device_map_set = bool(agent._get_device_map(info))

    # Calls

    @uncompiled
    def _call_async(self, method: str, /, *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
        return rpc.rpc_async(
            self.module_rref.owner(),
            at_owner.run,
            args=(self.module_rref, self.device, self.is_device_map_set, method, args, kwargs),
            timeout=self.timeout,
        )

    @uncompiled
    def _call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._call_async(method, *args, **kwargs).wait()

    @uncompiled
    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's ``forward`` there and waits for the result."""
        return self._call("forward", *args, **kwargs)

    def forward_async(self, /, *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
        """As ``forward``, but returns a future at once."""
        return self._call_async("forward", *args, **kwargs)

    @property
    def remote(self) -> Any:
        """Any method of the module: ``module.remote.encode(x)`` runs ``encode(x)`` there."""
        return _Methods(self._call)

    @property
    def remote_async(self) -> Any:
        """As :attr:`remote`, but each method returns a future."""
        return _Methods(self._call_async)

    # The module at its owner

    def get_module_rref(self) -> RRef:
        """The reference to the module."""
        return self.module_rref

    def remote_parameters(self, recurse: bool = True) -> list[RRef]:
        """References to the module's parameters, e.g. for a ``DistributedOptimizer``."""
        return self.remote_parameters_async(recurse).wait()

    def remote_parameters_async(self, recurse: bool = True) -> torch.futures.Future[list[RRef]]:
        """As :meth:`remote_parameters`, but returns a future."""
        return rpc.rpc_async(
            self.module_rref.owner(),
            at_owner.parameters,
            args=(self.module_rref, recurse),
            timeout=self.timeout,
        )

    def remote_grads(self, context_id: int | None = None) -> dict[str, Tensor | None]:
        """The parameters' gradients by name: those of a distributed autograd context, or ``.grad``."""
        return self._at_owner(at_owner.gradients, context_id)

    def extra_repr(self) -> str:
        published = "" if self.name is None else f", name={self.name!r}"
        return f"{self.on!r}, device={self.device!r}{published}"

    def remote_repr(self) -> str:
        """The ``repr`` of the module at its owner."""
        return self._at_owner(at_owner.describe)

    # TorchScript

    def __prepare_scriptable__(self) -> RemoteModule:
        """Called by ``torch.jit.script``, which then compiles typed calls of the published module.

        torch puts the returned module into the scripted model, so this returns the module itself, whose
        class becomes one with types.
        """
        self._refuse_own_class("torch.jit.script")
        typed = subclass(self._at_owner(at_owner.signature), RemoteModule)
        if self.name is None:
            name = f"remote_module.{uuid.uuid4().hex}"
            self._at_owner(at_owner.publish_as, name, self.device)
            self.name = name
        # Saved as an attribute; the module may have been made in eval mode.
        self.training = self._at_owner(at_owner.is_training)
        self.script_worker = self.module_rref.owner_name()
        self.script_target = self.name
        self.__class__ = typed
        _internal_rpc_pickler._register_reducer(typed, _reduce)
        return self

    def _refuse_own_class(self, operation: str) -> None:
        """Raises for a user's subclass, because scripting and sending keep only RemoteModule's methods."""
        cls = type(self)
        if cls is not RemoteModule and not is_subclass(cls):
            raise TypeError(
                f"{operation} of a {cls.__qualname__}: it would lose what {cls.__qualname__} adds to "
                "weft.RemoteModule; derive the class from nn.Module and let it hold a weft.RemoteModule"
            )

    # Pickling works over RPC only, through the reducer below

    def __getstate__(self) -> Any:
        self._refuse_own_class("pickling")
        raise RuntimeError(_PICKLE_ERROR.format("pickle"))

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError(_PICKLE_ERROR.format("unpickle"))


def _receive(
    on: str | int, device: str, module_rref: Any, name: str | None, timeout: float, training: bool
) -> RemoteModule:
    rref = rpc.PyRRef._deserialize(module_rref)
    worker = f"rank:{on}" if isinstance(on, int) else on
    made = RemoteModule.init_from_module_rref(
        f"{worker}/{device}", rref, name=name, timeout=timeout
    )
    made.training = training
    return made


def _reduce(module: RemoteModule) -> tuple[Any, tuple[Any, ...]]:
    rref = module.module_rref._serialize()
    return _receive, (
        module.on,
        module.device,
        rref,
        module.name,
        module.timeout,
        module.training,
    )


_internal_rpc_pickler._register_reducer(RemoteModule, _reduce)
