"""Handwritten digits, learned by a model that is split over four processes. See README.md."""
