"""Update rules: (state, release) -> state, on flat float64 vectors."""
