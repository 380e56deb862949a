"""The published MacAdam comparison on MNIST: six update rules under one mechanism."""
