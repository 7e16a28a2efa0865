"""The options of a Weft agent, checked where they are given."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypedDict
from urllib.parse import urlparse

import torch
from torch.distributed.rpc import constants
from torch.distributed.rpc.options import _to_device_map

from weft import _C

DeviceLike = int | str | torch.device

POLICIES = ("any", "registered", "script")


def _accelerator(device: DeviceLike) -> torch.device:
    device = torch.device(device)
    if device.type == "cpu":
        raise ValueError("`devices` lists accelerators, but got device type cpu")
    return device


def check_seconds(name: str, value: object) -> float:
    """The time given as ``name``, in seconds; raises unless it is one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must not be negative or infinite, got {value!r}")
    return float(value)


def check_int(name: str, value: object, least: int = 1, most: int = 2**63 - 1) -> int:
    """The int given as ``name``. ``least`` is 0 or 1.

    Raises:
        TypeError: ``value`` is no int.
        ValueError: it is below ``least`` or above ``most``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < least and least == 1:
        raise ValueError(f"{name} must be positive, got {value}")
    if value < least:
        raise ValueError(f"{name} must not be negative, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")
    return value


class RpcOptions(TypedDict, total=False):
    """The options of :class:`RpcBackendOptions` by name, for type checkers."""

    num_worker_threads: int
    rpc_timeout: float
    init_method: str
    device_maps: Mapping[str, Mapping[DeviceLike, DeviceLike]] | None
    devices: Sequence[DeviceLike] | None
    heartbeat_interval: float | None
    peer_timeout: float | None
    reconnect_timeout: float | None
    max_message_bytes: int | None
    max_inflight_bytes: int | None
    max_calls_in_flight: int
    auth_key_file: str | os.PathLike[str] | None
    interface: str | None
    request_policy: str | None


class RpcBackendOptions(_C.RpcBackendOptionsBase):
    """Options for ``init_rpc(backend=BackendType.WEFT, rpc_backend_options=…)``.

    ::

        options = weft.RpcBackendOptions(rpc_timeout=30, request_policy="script")
        rpc.init_rpc("worker0", rank=0, world_size=2, rpc_backend_options=options)

    Args:
        num_worker_threads: the most threads that run requests.
        rpc_timeout: seconds before a call without a timeout of its own fails, and that ``init_rpc``
            waits for the other workers; 0: such calls never fail, and ``init_rpc`` waits 60.
        init_method: the address of the Store, as for ``init_process_group``.
        device_maps: worker name to a map of devices here to devices there.
        devices: accelerators in use; by default the ones in the device maps.
        heartbeat_interval: seconds between heartbeats on an idle connection.
        peer_timeout: seconds of silence after which a peer is declared lost.
        reconnect_timeout: seconds to reconnect after a broken connection before the peer is lost;
            by default 5, or ``peer_timeout`` if that is less, which is also the most; 0: a broken
            connection is a lost peer.
        max_message_bytes: the largest message that is accepted from a peer; by default half of
            the machine's memory (or of what its container allows), at most 64 GiB.
        max_inflight_bytes: the most bytes of unfinished requests held here for one peer; the same
            default.
        max_calls_in_flight: the most calls to one peer that wait for answers; a further one waits
            for room, at most its timeout, and then fails. 0: no limit.
        auth_key_file: file with the group's key; default ``WEFT_AUTH_KEY_FILE``, else a key
            that travels through the Store.
        interface: interface name or numeric address to listen on; default
            ``WEFT_SOCKET_IFNAME``, else the one that reaches the master.
        request_policy: what peers may ask of this process: ``"any"`` (PyTorch's behaviour),
            ``"registered"`` (functions given to :func:`weft.register_function`, TorchScript,
            built-in operators) or ``"script"`` (TorchScript and built-in operators only).

    Raises:
        TypeError: an unknown name or a wrong type.
        ValueError: a value out of range.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = constants.DEFAULT_INIT_METHOD,
        device_maps: Mapping[str, Mapping[DeviceLike, DeviceLike]] | None = None,
        devices: Sequence[DeviceLike] | None = None,
        heartbeat_interval: float | None = None,
        peer_timeout: float | None = None,
        reconnect_timeout: float | None = None,
        max_message_bytes: int | None = None,
        max_inflight_bytes: int | None = None,
        max_calls_in_flight: int = 0,
        auth_key_file: str | os.PathLike[str] | None = None,
        interface: str | None = None,
        request_policy: str | None = None,
    ) -> None:
        super().__init__(check_seconds("rpc_timeout", rpc_timeout), init_method)
        self.num_worker_threads = check_int(
            "num_worker_threads", num_worker_threads, most=2**31 - 1
        )
        self.device_maps = {
            worker: _to_device_map(dict(device_map))
            for worker, device_map in (device_maps or {}).items()
        }
        self.devices = [_accelerator(device) for device in devices or ()]
        for name, value in (
            ("heartbeat_interval", heartbeat_interval),
            ("peer_timeout", peer_timeout),
            ("reconnect_timeout", reconnect_timeout),
        ):
            if value is not None:
                setattr(self, name, check_seconds(name, value))
        if reconnect_timeout is None and not os.environ.get("WEFT_RECONNECT_TIMEOUT"):
            self.reconnect_timeout = min(self.reconnect_timeout, self.peer_timeout)
        for name, value in (
            ("max_message_bytes", max_message_bytes),
            ("max_inflight_bytes", max_inflight_bytes),
        ):
            if value is not None:
                setattr(self, name, check_int(name, value))
        self.max_calls_in_flight = check_int("max_calls_in_flight", max_calls_in_flight, least=0)
        if auth_key_file is not None:
            self.auth_key_file = os.fspath(auth_key_file)
        if interface is not None:
            self.interface = interface
        policy = request_policy or os.environ.get("WEFT_REQUEST_POLICY") or "any"
        if policy not in POLICIES:
            name = "request_policy" if request_policy else "WEFT_REQUEST_POLICY"
            raise ValueError(f"{name} must be one of {POLICIES}, got {policy!r}")
        self.request_policy = policy
        try:
            self.check()
        except RuntimeError as error:
            raise ValueError(str(error)) from None

    def set_device_map(self, to: str, device_map: Mapping[DeviceLike, DeviceLike]) -> None:
        """Adds to the device map for worker ``to``; the map must stay one-to-one.

        Raises:
            ValueError: when a device would be mapped twice.
        """
        maps = dict(self.device_maps)
        merged = dict(maps.get(to, {}))
        for here, there in _to_device_map(dict(device_map)).items():
            if here in merged and merged[here] != there:
                raise ValueError(
                    "`set_device_map` only supports 1-to-1 mapping, trying to map "
                    f"{here} to {there} and {merged[here]}"
                )
            merged[here] = there
        maps[to] = merged
        self.device_maps = maps

    def set_devices(self, devices: Sequence[DeviceLike]) -> None:
        """Sets the accelerators in use."""
        self.devices = [_accelerator(device) for device in devices]


def master_host(init_method: str) -> str:
    """The host that ``init_method`` names, or ``""`` (a file names none)."""
    url = urlparse(init_method)
    if url.scheme == "env":
        return os.environ.get("MASTER_ADDR", "")
    if url.scheme == "tcp":
        return url.hostname or ""
    return ""
