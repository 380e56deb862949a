"""Four hospitals: what a KAN and a one-layer model are worth at ε = ∞, 3, 1 and 0.5."""
