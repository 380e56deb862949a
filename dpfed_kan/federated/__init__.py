"""The rounds: the server's algorithm and one site's work; no torch, no wire."""
