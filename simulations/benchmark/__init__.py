"""Job J through every runtime, the bare loop and other packages: where speed is claimed from."""
