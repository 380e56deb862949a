"""Records: where they come from, how they are split, and which site holds which."""
