"""What both ends of the data channel agree on."""

from __future__ import annotations

SERVICE = "dpfed_kan.Channel"
METHOD = "Rounds"
PATH = f"/{SERVICE}/{METHOD}"
TOKEN, SESSION = "dpfed-token", "dpfed-session"
_KEEPALIVE_MS = 20_000


def options(largest_message: int) -> list[tuple[str, int]]:
    """Return gRPC's options: nothing larger is received, and a dead peer is noticed."""
    return [
        ("grpc.max_receive_message_length", largest_message),
        ("grpc.max_send_message_length", largest_message),
        ("grpc.max_metadata_size", 8192),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        ("grpc.so_reuseport", 0),
        ("grpc.enable_http_proxy", 0),
    ]
