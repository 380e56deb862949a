"""The data channel: a lasting connection of each site to the server, over TLS; no flwr."""
