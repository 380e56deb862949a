"""Any torch module through the same gradient port as the KAN: perceptron, CNN, a user's own."""
