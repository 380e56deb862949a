"""Kolmogorov-Arnold networks trained across sites under an ε that is true of what was run."""

__version__ = "0.1.0"
