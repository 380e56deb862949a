"""The replies of one round: one a site, of this run and round; all else is named, kept out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from dpfed_kan.federated.deployed import OnBadReply
from dpfed_kan.federated.server import RoundRefused, Server
from dpfed_kan.federated.site import Broadcast, Reply
from dpfed_kan.privacy.ledger import Ledger, Zeroed

_LOG = logging.getLogger(__name__)
_PROBLEMS_SHOWN = 5


class Inbox:
    """Takes what arrives in a round; not thread-safe.

    Guarantees:
        `replies` holds at most one reply of each site of the plan, of this run and round, float64
        of the right shape, finite, and no longer than its records clipped can be.

    Args:
        server: What stays the same over the rounds.
        run_id: Of this run.
        round_index: t, from 0.
        dimension: D.
    """

    def __init__(self, server: Server, *, run_id: str, round_index: int, dimension: int) -> None:
        self._server = server
        self._run_id = run_id
        self.round_index = round_index
        self._dimension = dimension
        self.replies: dict[str, Reply] = {}
        self.problems: dict[str, str] = {}

    def take(self, reply: Reply, *, sender: str, run_id: str) -> None:
        """Take a reply.

        Args:
            reply: What it says.
            sender: The site that it really came from.
            run_id: The run that it says it belongs to.
        """
        if sender not in self._server.num_records:
            _LOG.warning("round %d: a reply from no site of the plan is refused", self.round_index)
        elif run_id != self._run_id:
            self.refuse(sender, "the reply belongs to another run")
        elif reply.site != sender:
            self.refuse(sender, "the reply names another site than the one that sent it")
        elif (problem := self._problem(reply)) is not None:
            self.refuse(sender, problem)
        elif sender in self.replies:
            if reply.value.tobytes() != self.replies[sender].value.tobytes():
                self.refuse(sender, "two different replies")
            else:
                _LOG.warning(
                    "round %d, %s: the reply came twice; it counts once", self.round_index, sender
                )
        elif sender not in self.problems:
            self.replies[sender] = reply

    def refuse(self, site: str, problem: str) -> None:
        """Keep out whatever a site says in this round; the first problem is the one told."""
        if site not in self._server.num_records:
            return
        self.replies.pop(site, None)
        if site not in self.problems:
            _LOG.warning("round %d, %s: %s", self.round_index, site, problem)
            self.problems[site] = problem

    @property
    def waiting_for(self) -> list[str]:
        """The sites of which nothing has been heard, by name."""
        heard = self.replies.keys() | self.problems.keys()
        return sorted(self._server.num_records.keys() - heard)

    def _problem(self, reply: Reply) -> str | None:
        return self._server.problem_of(
            reply, round_index=self.round_index, dimension=self._dimension
        )


class Collect(Protocol):
    """A way to the sites."""

    def __call__(self, broadcast: Broadcast, inbox: Inbox) -> None:
        """Carry a broadcast to all sites; put what comes back, in time, into the inbox."""
        ...


def exchange_over(
    collect: Collect,
    server: Server,
    *,
    run_id: str,
    timeout: float,
    on_bad_reply: OnBadReply,
    ledger: Ledger,
) -> Callable[[Broadcast], Sequence[Reply]]:
    """Return an exchange that answers for every site, or stops the run.

    A site with a missing or bad reply stops the run, or contributes zero: the noise, the divisor
    and so the guarantee stay those of the plan, and the ledger says which site it was before
    anything is released. What the ledger says of a round holds after a crash, too: who was to
    contribute zero does, whatever it says now, and in a round that was released nobody else may.

    Args:
        collect: The way to the sites.
        server: What stays the same over the rounds.
        run_id: Of this run.
        timeout: Seconds that `collect` waits, for the message.
        on_bad_reply: stop or zero.
        ledger: Of this run.
    """

    def exchange(broadcast: Broadcast) -> Sequence[Reply]:
        inbox = Inbox(
            server,
            run_id=run_id,
            round_index=broadcast.round_index,
            dimension=len(broadcast.params),
        )
        collect(broadcast, inbox)
        for site in inbox.waiting_for:
            inbox.refuse(site, f"no answer within {timeout:g} s")
        round_index = broadcast.round_index
        zeroed = {known.site for known in ledger.zeroed if known.round_index == round_index}
        for site in zeroed:
            inbox.refuse(site, "it was to contribute zero when this round was run before")
        fresh = inbox.problems.keys() - zeroed
        stops = on_bad_reply == "stop" or round_index < len(ledger.events)
        if (fresh and stops) or not inbox.replies:
            raise refused(
                f"round {broadcast.round_index}",
                inbox.problems,
                have=inbox.replies,
                need=server.num_records,
            )
        for site, problem in sorted(inbox.problems.items()):
            if site in fresh:
                ledger.record_zero(Zeroed(round_index=round_index, site=site, problem=problem))
            inbox.replies[site] = Reply(
                site=site,
                round_index=broadcast.round_index,
                value=np.zeros(len(broadcast.params)),
            )
        return [inbox.replies[site] for site in sorted(inbox.replies)]

    return exchange


def refused(
    where: str, problems: Mapping[str, str], *, have: Collection[str], need: Collection[str]
) -> RoundRefused:
    """Return the error that says how many sites there are, which are missing and why."""
    missing = sorted(set(need) - set(have))
    shown = [f"{site}: {problem}" for site, problem in sorted(problems.items())]
    if len(shown) > _PROBLEMS_SHOWN:
        shown = [*shown[:_PROBLEMS_SHOWN], f"and {len(shown) - _PROBLEMS_SHOWN} more"]
    names = ", ".join(missing[:_PROBLEMS_SHOWN])
    return RoundRefused(
        f"{where}: have {len(need) - len(missing)}, need {len(need)}: missing {names} "
        f"({'; '.join(shown)})"
    )
