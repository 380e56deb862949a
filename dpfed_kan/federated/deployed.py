"""How the sites of a deployment are reached, and what a bad reply leads to: settings only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpfed_kan._validate import check_choice, check_count, check_positive

Transport = Literal["native", "channel"]
OnBadReply = Literal["stop", "zero"]


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """Sites that are processes of their own, reached through Flower.

    Args:
        transport: `native`: one Flower message a site and round; `channel`: one Flower message a
            site, after which the site keeps a connection to the server open.
        on_bad_reply: A round with a missing or bad reply stops the run, or goes on with that site
            contributing zero; noise and divisor are the same either way.
        num_threads: Of the server's matrix products.
        timeout: Seconds to wait for the replies of a round.
        meeting_timeout: Seconds of each wait before round 0: for the sites, for their yes to the
            plan, for their connections.
        channel_address: host:port that the server listens at, and that sites connect to.
        channel_certificate: Path of its certificate, PEM.
        channel_key: Path of that certificate's private key, PEM.
        device: Where the sites compute gradients, cpu or cuda.
    """

    transport: Transport = "channel"
    on_bad_reply: OnBadReply = "stop"
    num_threads: int = 1
    timeout: float = 300.0
    meeting_timeout: float = 120.0
    channel_address: str | None = None
    channel_certificate: str | None = None
    channel_key: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        check_choice("transport", self.transport, ("native", "channel"))
        check_choice("on_bad_reply", self.on_bad_reply, ("stop", "zero"))
        check_choice("device", self.device, ("cpu", "cuda"))
        check_count("num_threads", self.num_threads)
        check_positive("timeout", self.timeout)
        check_positive("meeting_timeout", self.meeting_timeout)
