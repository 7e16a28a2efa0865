"""CUDA tensors: RPC beside TensorPipe, ranks that share a GPU beside gloo, a Pipe beside a loop."""
