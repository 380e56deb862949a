"""[KAN-GD], arXiv 2601.22409, Table 1: how far the tangent kernel separates the classes."""
