"""A run as the ledger's rows tell it: reserved, answered up to some round, closed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dpfed_kan.sites.chain import Chain
from dpfed_kan.sites.heads import LedgerError
from dpfed_kan.sites.plan import Plan, read_plan
from dpfed_kan.sites.spending import Charge, price_stopped


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """A run as the ledger has it.

    Args:
        run: Its name.
        plan: That was approved.
        site: This site's name in it.
        data_set: Digest of what it trains on.
        streams: Keyed digest of the streams that its batches are drawn from.
        arrangement: Of the data set's order.
        whole: Price of all its rounds.
        stop_delta: δ set aside so that it may be charged less if it stops early.
        last_round: Last round that was answered; None if none was.
        closed: What it is charged since it was closed; None while it is open.
    """

    run: str
    plan: Plan
    site: str
    data_set: str
    streams: str
    arrangement: str
    whole: Charge
    stop_delta: float
    last_round: int | None
    closed: Charge | None

    @property
    def complete(self) -> bool:
        """Whether the last round was answered: nothing more can be spent, nothing given back."""
        return self.last_round == self.whole.num_rounds - 1

    @property
    def charge(self) -> Charge:
        """What counts against the budget: all rounds while the run is open."""
        if self.closed is not None:
            return self.closed
        return Charge(
            epsilon=self.whole.epsilon,
            delta=self.whole.delta + self.stop_delta,
            num_rounds=self.whole.num_rounds,
            method=self.whole.method,
        )


def append(chain: Chain, event: str, **content: Any) -> None:
    """Add an event with its time; only within `writing`."""
    now = datetime.now(tz=UTC).isoformat(timespec="seconds")
    chain.append({"event": event, "at": now, **content})


def close_run(chain: Chain, run: str) -> RunEntry:
    """End a run for good and charge what it can have released; this needs no key.

    It is charged whole if another run answered since it was reserved: when it stopped may then
    depend on that one, too.

    Raises:
        LedgerError: If there is no such run, or the ledger cannot be written.
    """
    while True:
        entry = read_run(chain, run)
        if entry.closed is not None:
            return entry
        began = chain.rows("reserve", run=run)[0].number
        alone = not chain.others_answered_since(began, run=run)
        answered = 0 if entry.last_round is None else entry.last_round + 1
        charge = price_stopped(
            entry.plan,
            entry.whole,
            site=entry.site,
            num_rounds=answered if alone or answered == 0 else entry.whole.num_rounds,
            stop_delta=entry.stop_delta,
        )
        with chain.writing():
            now = read_run(chain, run)
            joined = alone and chain.others_answered_since(began, run=run)
            if (now.last_round, now.closed) != (entry.last_round, None) or joined:
                continue  # another process has answered or closed meanwhile
            append(
                chain,
                "close",
                run=run,
                epsilon=charge.epsilon,
                delta=charge.delta,
                num_rounds=charge.num_rounds,
                method=charge.method,
            )


def read_runs(chain: Chain) -> list[RunEntry]:
    """Return all runs in the order in which they were reserved."""
    closed = {}
    for row in chain.rows("close"):
        content = json.loads(row.content)
        closed[content["run"]] = _charge(content, num_rounds=content["num_rounds"])
    return [
        _entry(chain, json.loads(row.content), closed.get(json.loads(row.content)["run"]))
        for row in chain.rows("reserve")
    ]


def read_run(chain: Chain, run: str) -> RunEntry:
    """Return one run.

    Raises:
        LedgerError: If nothing was reserved under that name.
    """
    reserved = chain.rows("reserve", run=run)
    if not reserved:
        raise LedgerError(f"nothing was reserved for a run {run!r}")
    closes = [json.loads(row.content) for row in chain.rows("close", run=run)]
    closed = _charge(closes[0], num_rounds=closes[0]["num_rounds"]) if closes else None
    return _entry(chain, json.loads(reserved[0].content), closed)


def _entry(chain: Chain, content: dict[str, Any], closed: Charge | None) -> RunEntry:
    plan = read_plan(json.dumps(content["plan"]))
    return RunEntry(
        run=content["run"],
        plan=plan,
        site=content["site"],
        data_set=content["data_set"],
        streams=content["streams"],
        arrangement=content["arrangement"],
        whole=_charge(content, num_rounds=plan.mechanism.num_rounds),
        stop_delta=float(content["stop_delta"]),
        last_round=chain.last_round(content["run"]),
        closed=closed,
    )


def _charge(content: Mapping[str, Any], *, num_rounds: int) -> Charge:
    return Charge(
        epsilon=float(content["epsilon"]),
        delta=float(content["delta"]),
        num_rounds=num_rounds,
        method=content["method"],
    )
