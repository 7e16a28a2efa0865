"""Step time of data-parallel training, Weft against Gloo: ``./dev bench ddp``."""
