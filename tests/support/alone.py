"""An RPC group of this process alone, which a Pipe needs for its RRef."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Joins a group of one for a module's tests: tests of others may need a process that is in none."""
    import torch.distributed.rpc as rpc

    import weft

    store = tmp_path_factory.mktemp("group") / "store"
    options = weft.RpcBackendOptions(init_method=f"file://{store}")
    kind = rpc.backend_registry.BackendType.WEFT
    rpc.init_rpc("alone", kind, rank=0, world_size=1, rpc_backend_options=options)
    yield
    rpc.shutdown()
