"""What serves remote and published modules: the code at the owner, TorchScript stubs, NamedTuples."""
