"""Weft's process group against Gloo's, side by side in one invocation: ``./dev bench collectives``."""
