"""A character-level transformer, trained through a pipeline. See README.md."""
