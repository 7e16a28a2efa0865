"""The functions of torch that Weft replaces; the doctor checks them against this torch.

Most act only where the agent or the process group is Weft's. Always: device_guard, forward_ad (in
stages of a Pipe), and the reducers of scripted modules (calls.py). Besides these there are debug_pages,
in the debug server's process, and what Weft puts into torch's tables default_device_backend_map,
backend_capability and pg_coalesce_state. To see what a torch has changed::

    from weft._torch import patches
    print([text for patch in patches.ALL if (text := patch.mismatch())])
"""

from __future__ import annotations

from weft._torch.patches import (
    batches,
    calls,
    debug_server,
    default,
    device_guard,
    devices,
    failures,
    flight_recorder,
    forward_ad,
    futures,
    groups,
    rref,
    shutdown,
    startup,
    timeouts,
    unpickler,
)

AT_IMPORT = (
    device_guard.ensure,
    devices.invoke_through_rref,
    devices.tensors_in,
    startup.init_rpc,
    startup.create_store,
    calls.invoke_rpc,
    calls.invoke_rpc_torchscript,
    calls.invoke_remote_builtin,
    calls.serialize,
    unpickler.ordered,
    failures.run_function,
    failures.deserialize,
    failures.handle_exception,
    timeouts.set_rpc_timeout,
    rref.to_here,
    rref.local_value,
    rref.serialize,
    futures.wait,
    futures.then,
    futures.add_done_callback,
    shutdown.wait_all_workers,
    shutdown.delete_rrefs,
    shutdown.destroy_rref_context,
    groups.monitored_barrier,
    groups.set_pg_timeout,
    groups.sequence_number,
    groups.ddp_logging_data,
    batches.batch_isend_irecv,
    batches.coalescing_manager,
    *flight_recorder.PATCHES,
    *debug_server.PATCHES,
    forward_ad.enter_dual,
    forward_ad.exit_dual,
    forward_ad.enter_jvp,
    forward_ad.exit_jvp,
)
ON_REQUEST = (
    unpickler.restricted,
    default.init_rpc,
    default.init_process_group,
    default.new_group,
)
ALL = (*AT_IMPORT, *ON_REQUEST)


def install() -> None:
    """Installs the patches that registration needs."""
    for patch in AT_IMPORT:
        patch.install()
