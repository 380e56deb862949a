"""[KAN-SGD], arXiv 2605.12648: what correlated noise does to training, at fixed κ and fixed ε."""
