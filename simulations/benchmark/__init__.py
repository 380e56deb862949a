"""Where speed is claimed from: job J through every runtime, beside the bare loop."""
