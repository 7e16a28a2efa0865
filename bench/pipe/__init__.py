"""Weft's Pipe beside hand-written micro-batching, torch 2.3.1's Pipe and torch.distributed.pipelining.

``./dev bench pipe``; see ``__main__.py``.
"""
