"""Weft's RPC against TensorPipe's, side by side in one invocation: ``./dev bench rpc``."""
