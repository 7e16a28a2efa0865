"""PyTorch's two-worker RemoteModule example, over Weft. See README.md."""
