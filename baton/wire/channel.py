"""Options that both ends of every internal gRPC connection share.

A gRPC server allows one ping in five minutes by default and answers more with GOAWAY; a client that pings through a long
prefill would lose its streams. So the pings are allowed here, by name, on every server of ours.
"""

from __future__ import annotations

TOKEN_KEY = "baton-cluster-token"
"""Metadata key of the cluster token, on every internal call."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Of one message: a model card with a large tokenizer, a prompt of the longest context."""

KEEPALIVE_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
MIN_PING_MS = 1_000

Options = tuple[tuple[str, int], ...]


def channel_options() -> Options:
    """A client's options. Each channel has its own connection, so that a fresh dial does not wait out an old one's backoff."""
    return (
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    )


def server_options() -> Options:
    """A server's options: pings of any of our clients are welcome; a second bind of a taken port fails."""
    return (
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),
    )
