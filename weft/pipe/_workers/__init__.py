"""The workers' part of pipelines over workers, and what driver and workers tell each other."""
