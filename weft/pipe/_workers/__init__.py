"""Pipelines whose stages run on several workers: plans, the workers' part, the driver's part."""
