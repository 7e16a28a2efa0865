"""PyTorch's own RPC acceptance suites, run on Weft (or, for comparison, on TensorPipe)."""
