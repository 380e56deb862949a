"""Runs and published results; `python -m simulations.run` is the one entry."""
