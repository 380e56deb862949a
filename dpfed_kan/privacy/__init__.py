"""Pure mathematics of the guarantee: sampling, clipping, noise, sensitivity, accounts."""
