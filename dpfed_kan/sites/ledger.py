"""A site's own ledger: what its records have paid, over all runs, before any reply leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed_kan.sites.budget import admitted, check_lowered, comparable, spent_together
from dpfed_kan.sites.chain import Chain
from dpfed_kan.sites.data_set import DataSet, SiteKey
from dpfed_kan.sites.entries import RunEntry, append, close_run, read_run, read_runs
from dpfed_kan.sites.heads import LedgerError
from dpfed_kan.sites.plan import Plan
from dpfed_kan.sites.policy import PlanRefused, Policy
from dpfed_kan.sites.spending import Charge, Spending, price
from dpfed_kan.sites.verifying import verify

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a run asks of a site's budget.

    Args:
        run: Its name, the same after a crash.
        plan: That the policy has approved.
        site: This site's name in it.
        policy: With the budget.
        data_set: What it trains on.
        streams: Keyed digest of the streams its batches are drawn from.
        streams_are_seeded: Whether these are of a declared seed, which runs may share.
    """

    run: str
    plan: Plan
    site: str
    policy: Policy
    data_set: DataSet
    streams: str
    streams_are_seeded: bool


class SiteLedger:
    """The ledger, open and verified.

    Guarantees:
        Whatever the order of calls, processes and crashes: what is charged covers every reply
        that left, and no run is admitted that could exceed the budget it was reserved under.

    Args:
        path: Of the SQLite file; begun if it is absent.
        key: The site's own, always the same.

    Raises:
        LedgerError: If it cannot be used, was changed, or was begun with another key.
    """

    def __init__(self, path: Path, *, key: SiteKey) -> None:
        self.key = key
        self.chain = Chain(path, create=True)
        found = verify(self.chain)
        if found.bad_row is not None:
            raise LedgerError(f"the ledger {path}: row {found.bad_row}: {found.problem}")
        with self.chain.writing():
            if found.num_rows == 0 and self.chain.last_row() is None:
                append(self.chain, "begin", format=_FORMAT, key_check=self._key_check)
        (begun,) = [json.loads(row.content) for row in self.chain.rows("begin")]
        if begun["format"] != _FORMAT:
            raise LedgerError(f"the ledger {path} was begun by another version of this program")
        if begun["key_check"] != self._key_check:
            raise LedgerError(f"the ledger {path} was begun with another site key: use that one")

    def check(self, asked: Request) -> None:
        """Refuse what `reserve` would refuse now; nothing is written.

        A yes is no promise: another run may take the room before this one reserves it.

        Raises:
            PlanRefused: As `reserve`.
            LedgerError: As `reserve`.
        """
        entries = read_runs(self.chain)
        if self._goes_on(entries, asked) is None:
            admitted(
                self._others(entries, asked), asked.plan, asked.site, _whole(asked), asked.policy
            )

    def reserve(self, asked: Request) -> RunEntry:
        """Set aside what all rounds of a run would cost, or refuse; one transaction.

        A run that was reserved before is gone on with, if nothing has changed.

        Raises:
            PlanRefused: If the budget does not suffice, or streams would be used again.
            LedgerError: If the run is another one or over, or the ledger cannot be written.
        """
        whole = None
        data_set = asked.data_set
        while True:
            entries = read_runs(self.chain)
            known = self._goes_on(entries, asked)
            if known is not None:
                return known
            related = self._others(entries, asked)
            whole = whole or _whole(asked)
            stop_delta = admitted(related, asked.plan, asked.site, whole, asked.policy)
            with self.chain.writing():
                if _charges(read_runs(self.chain)) != _charges(entries):
                    continue  # another process has charged something meanwhile
                if data_set.digest not in self._data_sets():
                    append(
                        self.chain,
                        "data_set",
                        data_set=data_set.digest,
                        members_sha256=data_set.members_sha256,
                        num_records=data_set.num_records,
                        columns_sha256=data_set.columns_sha256,
                    )
                    self.chain.add_members(data_set.digest, data_set.members)
                append(
                    self.chain,
                    "reserve",
                    run=asked.run,
                    plan=asked.plan.as_plain(),
                    plan_sha256=asked.plan.sha256,
                    site=asked.site,
                    data_set=data_set.digest,
                    streams=asked.streams,
                    arrangement=data_set.arrangement,
                    epsilon=whole.epsilon,
                    delta=whole.delta,
                    stop_delta=stop_delta,
                    method=whole.method,
                )
            return read_run(self.chain, asked.run)

    def _goes_on(self, entries: list[RunEntry], asked: Request) -> RunEntry | None:
        """Return the run if it was reserved before and can be gone on with; None if it is new."""
        for entry in entries:
            if entry.run == asked.run:
                _check_same(entry, asked)
                check_lowered(self._related(entries, asked.data_set), entry, asked.policy)
                return entry
        return None

    def _others(self, entries: list[RunEntry], asked: Request) -> list[RunEntry]:
        """Return the runs whose cost counts with that of a new one."""
        if not asked.streams_are_seeded and any(
            entry.streams == asked.streams for entry in entries
        ):
            raise PlanRefused(
                rule="fresh streams",
                asked="batches from the streams of an earlier run",
                allowed="each stream for one run",
                way_out="start the run with a fresh key of the operating system",
            )
        return comparable(self._related(entries, asked.data_set), asked.policy)

    def check_round(self, run: str, round_index: int, *, broadcast: str) -> None:
        """Refuse a round before anything is computed for it.

        Args:
            run: A reserved one.
            round_index: t, from 0.
            broadcast: Keyed digest of all that the server said.

        Raises:
            LedgerError: If the run is closed, the round lies beyond its plan or before one that
                was answered, or was answered to another broadcast.
        """
        entry = read_run(self.chain, run)
        where = f"run {run!r}, round {round_index}"
        if entry.closed is not None:
            raise LedgerError(f"{where}: the run is closed at this site; start a new one")
        if not 0 <= round_index < entry.whole.num_rounds:
            raise LedgerError(
                f"{where}: expected a round in [0, {entry.whole.num_rounds}), as reserved"
            )
        answered = self.chain.round_row(run, round_index)
        if answered is not None:
            if json.loads(answered.content)["broadcast"] != broadcast:
                raise LedgerError(
                    f"{where}: it was answered already, to another broadcast; a second answer "
                    "would be a second release: resend the first broadcast, or start a new run"
                )
        elif entry.last_round is not None and round_index < entry.last_round:
            raise LedgerError(f"{where}: round {entry.last_round} was answered already")

    def commit(self, run: str, round_index: int, *, broadcast: str, reply: str) -> None:
        """Write down that a reply leaves: durable when this returns, and it may leave only then.

        The same reply again is one spending.

        Args:
            run: A reserved one.
            round_index: t, from 0.
            broadcast: As in `check_round`.
            reply: Keyed digest of the reply.

        Raises:
            LedgerError: As `check_round`, or if another reply was given to this broadcast.
        """
        with self.chain.writing():
            self.check_round(run, round_index, broadcast=broadcast)
            answered = self.chain.round_row(run, round_index)
            if answered is None:
                append(
                    self.chain,
                    "commit",
                    run=run,
                    round_index=round_index,
                    broadcast=broadcast,
                    reply=reply,
                )
            elif json.loads(answered.content)["reply"] != reply:
                raise LedgerError(
                    f"run {run!r}, round {round_index}: the answer is not the one that was given "
                    "before: records, code or streams have changed; start a new run"
                )

    def close_run(self, run: str) -> RunEntry:
        """End a run for good and give back what it can no longer spend.

        No reply can leave afterwards, in whatever process: `commit` refuses it.

        Raises:
            LedgerError: If there is no such run, or the ledger cannot be written.
        """
        return close_run(self.chain, run)

    def spent(self, data_set: DataSet, *, policy: Policy) -> Spending:
        """Return what all runs on any of these records cost, open ones as if they ended."""
        related = comparable(self._related(read_runs(self.chain), data_set), policy)
        return spent_together(related, policy)

    def _related(self, entries: Sequence[RunEntry], data_set: DataSet) -> list[RunEntry]:
        if data_set.digest in {entry.data_set for entry in entries}:
            sharing = self.chain.overlapping(data_set.digest)  # quicker, its members are there
        else:
            sharing = self.chain.sharing(data_set.members)
        return [entry for entry in entries if entry.data_set in sharing]

    def _data_sets(self) -> set[str]:
        return {json.loads(row.content)["data_set"] for row in self.chain.rows("data_set")}

    @property
    def _key_check(self) -> str:
        return self.key.digest("key check", b"")


def _check_same(entry: RunEntry, asked: Request) -> None:
    """Refuse to go on with a run that was reserved before as another one, or is closed."""
    where = f"the run {entry.run!r}"
    if entry.closed is not None:
        raise LedgerError(f"{where} is closed at this site; start a new one")
    same = {
        "plan": entry.plan.sha256 == asked.plan.sha256,
        "site's name": entry.site == asked.site,
        "data set": entry.data_set == asked.data_set.digest,
        "order of the records": entry.arrangement == asked.data_set.arrangement,
        "streams": entry.streams == asked.streams,
    }
    changed = [name for name, is_same in same.items() if not is_same]
    if changed:
        raise LedgerError(
            f"{where} was reserved with another {changed[0]}: it can only be gone on with as it "
            "was; start a new run"
        )


def _whole(asked: Request) -> Charge:
    rounds = asked.plan.mechanism.num_rounds
    return price(asked.plan, site=asked.site, num_rounds=rounds, delta=asked.plan.target_delta)


def _charges(entries: Sequence[RunEntry]) -> list[tuple[str, Charge]]:
    return [(entry.run, entry.charge) for entry in entries]
