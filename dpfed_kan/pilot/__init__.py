"""A trial of real processes on one machine: certificates, keys, SuperLink and SuperNodes."""
