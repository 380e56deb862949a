"""Real sites: each a process with its own file, key and log; the server holds no record."""
