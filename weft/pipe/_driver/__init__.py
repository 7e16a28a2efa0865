"""The driver's part of pipelines over workers: divides the stages, starts mini-batches, keeps the hold
on what is at the workers. The workers' part is ``weft.pipe._workers``.
"""
