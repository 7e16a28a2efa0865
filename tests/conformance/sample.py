"""Fixed samples of the suites: what to run where the whole would take too long.

SHORT serves other versions of PyTorch, where the question is whether the agent fits at all: one or
two tests of every message type, data kind and API. FULL_EXIT and SPAWN are run together and find what
forked ranks hide. Those of FULL_EXIT end as a user's process does (atexit handlers, static
destructors), so it leans towards leaving, failing and what is alive at exit. Those of SPAWN inherit
nothing either, for which each rank imports torch and its suites (6 s): one test for each thing that a
fork would bring along. Keys say why the tests under them were taken.
"""

from __future__ import annotations

Sample = dict[str, tuple[str, ...]]

SHORT: Sample = {
    "membership: static, dynamic, mixed, twice, duplicate names, one worker": (
        "RpcTest.test_worker_id test_world_size_one test_reinit test_init_rpc_twice",
        "RpcTest.test_duplicate_name test_invalid_names test_get_worker_infos test_wrong_types",
        "AgentRpcTest.test_dynamic_rpc_new_rank_can_communicated_with_existing_rank",
        "AgentRpcTest.test_dynamic_and_static_init_rpc_together test_infer_backend_from_options",
    ),
    "shutdown, graceful and not, and calls afterwards": (
        "RpcTest.test_graceful_shutdown_with_uneven_workload test_shutdown_followed_by_rpc",
        "RpcTest.test_local_shutdown_with_rpc test_handle_send_exceptions test_shutdown_errors",
    ),
    "every form of a call: builtin, Python, script; sync, async, remote; to itself; nested": (
        "RpcTest.test_add test_self_add test_async_add test_py_user_defined test_nested_rpc",
        "RpcTest.test_py_udf_remote test_async_function_chained_remote test_callback_in_rpc",
        "JitRpcTest.test_torchscript_function test_remote_script_udf test_async_script_throw",
        "JitRpcTest.test_rref_as_arg_and_return test_create_script_module_on_remote",
    ),
    "errors that travel": (
        "RpcTest.test_py_raise_in_user_func_escaped_str test_remote_throw",
        "RpcTest.test_custom_exception_throw_during_reconstruction",
    ),
    "the data that travels: containers, views, sparse, unusual arguments": (
        "RpcTest.test_py_tensors_in_container test_non_cont_tensors test_rpc_return_rref",
        "AgentRpcTest.test_send_to_rank_sparse test_py_rref_args_sparse",
        "JitRpcTest.test_args_and_kwargs_contain_different_types",
    ),
    "reference counting of RRefs between three parties": (
        "RpcTest.test_nested_rref test_rref_forward_chain test_py_rref_args_user_share",
        "RpcTest.test_user_rrefs_confirmed test_rref_context_debug_info",
    ),
    "load": ("RpcTest.test_stress_light_rpc test_multi_layer_nested_async_rpc",),
    "timeouts": ("RpcTest.test_rpc_timeouts test_wait_all_workers_timeout",),
    "profiler and metrics": (
        "RpcTest.test_profiler_with_sync_rpc_udf test_rpc_profiling_remote_record_function",
        "RpcTest.test_debug_info JitRpcTest.test_rpc_async_jit_profiled",
    ),
    "distributed autograd and what stands on it": (
        "DistAutogradTest.test_backward_simple test_backward_multiple_round_trips",
        "DistAutogradTest.test_backward_rref test_context_cleanup_nested_rpc test_trainer_ps",
        "DistAutogradTest.test_backward_node_failure test_backward_python_udf_error",
        "AgentDistAutogradTest.test_backward_simple_sparse JitDistAutogradTest.test_dist_backward",
        "DistOptimizerTest.test_dist_optim RemoteModuleTest.test_forward_sync_script",
        "ThreeWorkersRemoteModuleTest.test_send_remote_module_over_the_wire",
        "DdpUnderDistAutogradTest.test_backward_ddp_inside",
        "ParameterServerTest.test_batch_updating_parameter_server",
    ),
    "injected faults": (
        "FaultyAgentRpcTest.test_check_failed_messages test_rpc_builtin_timeout",
        "FaultyAgentRpcTest.test_udf_remote_message_dropped_timeout",
        "JitFaultyAgentRpcTest.test_rref_to_here_timeout_in_jit",
    ),
}

FULL_EXIT: Sample = {
    "joining: once, twice, alone, after a process group, after a refused name": (
        "RpcTest.test_worker_id test_world_size_one test_reinit test_init_rpc_twice",
        "RpcTest.test_duplicate_name",
        "AgentRpcTest.test_infer_backend_from_options",
        "AgentRpcTest.test_dynamic_rpc_existing_rank_can_communicate_with_new_rank",
    ),
    "leaving: gracefully, not at all, in the midst of calls; crashes at exit show here": (
        "RpcTest.test_graceful_shutdown_with_uneven_workload test_local_shutdown_with_rpc",
        "RpcTest.test_shutdown_followed_by_rpc test_handle_send_exceptions test_shutdown_errors",
        "RpcTest.test_use_rref_after_shutdown test_ignore_rref_leak test_deadlock",
    ),
    "peers that die under a backward pass": (
        "DistAutogradTest.test_backward_node_failure test_backward_node_failure_python_udf",
    ),
    "Python objects, proxies and failures that the agent holds at exit": (
        "RpcTest.test_py_class_method test_py_raise_in_user_func test_nested_remote",
        "RpcTest.test_async_class_rref_proxy_remote test_py_multi_async_call",
    ),
    "scripted modules and futures alive at exit": (
        "JitRpcTest.test_remote_script_module test_rref_as_arg_and_return",
        "JitRpcTest.test_async_function_remote",
    ),
    "threads of the profiler and of autograd alive at exit": (
        "RpcTest.test_profiler_with_async_rpc_udf test_stress_light_rpc",
        "DistAutogradTest.test_backward_simple test_backward_rref_nested test_trainer_ps",
    ),
    "sparse tensors": ("AgentRpcTest.test_send_to_rank_sparse",),
    "what stands on RPC": ("DistOptimizerTest.test_dist_optim",),
    "injected faults": ("FaultyAgentRpcTest.test_rpc_script_timeout",),
}

SPAWN: Sample = {
    "joining: each rank registers the backend and meets the others from nothing": (
        "RpcTest.test_init_pg_then_rpc AgentRpcTest.test_dynamic_rpc_init_rpc",
        "FaultyAgentRpcTest.test_check_failed_messages",
    ),
    "functions and classes pickled by module name, found in a process that did not fork": (
        "RpcTest.test_py_nested_pickle test_py_rpc_rref_args test_function_not_on_callee",
    ),
    "scripted code compiled in each rank": (
        "JitRpcTest.test_load_script_module_with_pickled_rref",
        "JitDistAutogradTest.test_dist_backward",
    ),
    "what stands on RPC": (
        "RemoteModuleTest.test_forward_async_script DdpUnderDistAutogradTest.test_backward_no_ddp",
    ),
}


def names(sample: Sample) -> set[str]:
    """The tests of a sample as `Suite.test`; a name without a suite takes that of its neighbour."""
    found: set[str] = set()
    for line in (line for lines in sample.values() for line in lines):
        suite = ""
        for word in line.split():
            if "." in word:
                suite, _, word = word.partition(".")
            found.add(f"{suite}.{word}")
    return found
