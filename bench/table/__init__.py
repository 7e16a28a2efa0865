"""Every figure beside its machine limit and its peer, in about ten minutes: ``./dev bench table``."""
