"""Where speed is claimed from: job J through every runtime, and in two neighbors, beside bare."""
