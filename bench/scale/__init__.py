"""How Weft's protocols grow with the number of ranks, by simulation: ``./dev bench scale``."""
