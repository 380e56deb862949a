"""Where speed is claimed from: job J through every runtime and two neighbors, beside a bare loop."""
