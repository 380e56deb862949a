"""The ledger: what was really released, durable before anybody acts on it."""

from __future__ import annotations

import errno
import io
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from dpfed_kan._validate import check_count
from dpfed_kan.privacy.accounting import NonPrivate, PrivacyGuarantee
from dpfed_kan.privacy.accounting.sites import SitesGuarantee, account_run
from dpfed_kan.privacy.mechanism import Mechanism, ReleaseEvent

_EVENT_FIELDS = tuple(field.name for field in fields(ReleaseEvent))


@dataclass(frozen=True, kw_only=True)
class Zeroed:
    """A site that contributed zero to a release, since its reply was missing or refused.

    Args:
        round_index: t, from 0.
        site: Its name.
        problem: What was wrong, in our own words: never a value.
    """

    round_index: int
    site: str
    problem: str


class Ledger:
    """The events of one run under one mechanism, in memory and, with a path, on disk.

    The file has one JSON object a line: the plan, then each release, and before a release the
    sites that contributed zero to it; a line torn by a crash was never acted upon and is dropped
    when the file is opened again.

    Guarantees:
        With `reserve_ahead` of 1 a release is on the disk before `record` returns. With R > 1 a
        line on the disk reserves the next R rounds before the first of them, and the releases
        follow without waiting for the disk: a process that is killed loses none, and where the
        power fails, the rounds that were reserved count as spent until they are run again.

    Args:
        mechanism: What every event must have been made by.
        num_records: Site name to its number of records; public.
        path: The file; it is created if absent and continued if it holds the same plan.
        reserve_ahead: R ≥ 1; above 1 for simulations, whose releases leave no machine.

    Raises:
        ValueError: If the file holds another plan or an event that does not fit.
    """

    def __init__(
        self,
        *,
        mechanism: Mechanism,
        num_records: Mapping[str, int],
        path: Path | None = None,
        reserve_ahead: int = 1,
    ) -> None:
        check_count("reserve_ahead", reserve_ahead)
        self.mechanism = mechanism
        self.num_records = dict(num_records)
        self.events: list[ReleaseEvent] = []
        self.zeroed: list[Zeroed] = []
        self._path = path
        self._reserve_ahead = reserve_ahead
        self._reserved = self._owed = 0
        self._unsynced = False
        self._file: io.FileIO | None = None
        plan = {"plan": describe(mechanism), "num_records": dict(num_records)}
        if path is None:
            return
        if path.exists():
            self._read(path, plan)
        else:
            self._append(plan)

    def record(self, event: ReleaseEvent) -> None:
        """Write a release down before it is used.

        A release that is computed again after a crash must be the one that was recorded: a
        second sum under the same noise would reveal the difference of the two.

        Raises:
            ValueError: If the event was not made by the plan, comes out of turn, or differs
                from the one that was recorded for its round.
        """
        self._check(event)
        if event.round_index < len(self.events):
            if event != self.events[event.round_index]:
                raise ValueError(
                    f"round {event.round_index} was already released, over a different sum; "
                    "nothing new was released. The data or the code has changed since: start a "
                    "new run"
                )
            return
        if self._reserve_ahead > 1 and event.round_index >= self._reserved:
            ahead = event.round_index + self._reserve_ahead
            self._reserved = min(ahead, self.mechanism.num_rounds)
            self._append({"reserved": self._reserved})
        release = {name: getattr(event, name) for name in _EVENT_FIELDS}
        release["l2_sensitivity"] = describe(event.l2_sensitivity)
        self._append({"release": release}, durable=self._reserve_ahead == 1)
        self.events.append(event)

    def record_zero(self, zeroed: Zeroed) -> None:
        """Write down, before the release, that a site contributes zero to it.

        The account is the same: noise, divisor and sampling are those of the plan.

        Raises:
            ValueError: If there is no such site, or the round is over or not yet due.
        """
        if zeroed.site not in self.num_records:
            raise ValueError(f"{zeroed.site} is not a site of this run")
        if not 0 <= zeroed.round_index <= len(self.events):
            raise ValueError(
                f"expected round {len(self.events)} next, got round {zeroed.round_index}"
            )
        if zeroed not in self.zeroed:
            self._append({"zero": asdict(zeroed)})
            self.zeroed.append(zeroed)

    @property
    def num_spent(self) -> int:
        """Rounds to account for: those released, or those reserved by a run that broke off."""
        return max(len(self.events), self._owed)

    def settle(self) -> None:
        """Write down that no round beyond `num_spent` was released, and close the file."""
        if self._reserved > self.num_spent or self._unsynced:
            self._reserved = self.num_spent
            self._append({"settled": self._reserved})
        if self._file is not None:
            self._file.close()
            self._file = None

    def spent(self, *, delta: float, cross_check: bool = False) -> PrivacyGuarantee | NonPrivate:
        """Account for the rounds that really happened, at the worst site."""
        found = self.spent_per_site(delta=delta, cross_check=cross_check)
        return found.sites[found.worst_site]

    def spent_per_site(self, *, delta: float, cross_check: bool = False) -> SitesGuarantee:
        """Account for the rounds that really happened, at every site."""
        return account_run(
            self.mechanism,
            num_records=self.num_records,
            delta=delta,
            num_rounds=self.num_spent,
            cross_check=cross_check,
        )

    def _check(self, event: ReleaseEvent) -> None:
        noise = self.mechanism.noise
        planned = (
            self.mechanism.l2_clip_norm,
            self.mechanism.noise_multiplier,
            noise.correlation,
            noise.column_normalized,
        )
        happened = (
            event.l2_sensitivity,
            event.noise_multiplier,
            event.correlation,
            event.column_normalized,
        )
        if planned != happened:
            raise ValueError(
                f"round {event.round_index} was not released by the plan: expected sensitivity, "
                f"noise multiplier, correlation, normalisation {planned}, got {happened}"
            )
        if not 0 <= event.round_index <= len(self.events):
            raise ValueError(
                f"expected round {len(self.events)} next, got round {event.round_index}: a round "
                "may neither be skipped nor go unrecorded"
            )
        if event.round_index >= self.mechanism.num_rounds:
            raise ValueError(
                f"round {event.round_index} lies beyond the horizon of "
                f"{self.mechanism.num_rounds} rounds"
            )

    def _append(self, entry: Mapping[str, Any], *, durable: bool = True) -> None:
        if self._path is None:
            return
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
            weakref.finalize(self, self._file.close)
        line = (json.dumps(entry, allow_nan=False) + "\n").encode()
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, "the ledger's disk is full", str(self._path))
        self._unsynced = not durable
        if durable:
            os.fsync(self._file.fileno())

    def _read(self, path: Path, plan: Mapping[str, Any]) -> None:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            with path.open("r+", encoding="utf-8") as file:
                file.truncate(len(whole.encode()))
        lines = [json.loads(line) for line in whole.splitlines()]
        if not lines:
            self._append(plan)
            return
        if lines[0] != json.loads(json.dumps(plan)):
            raise ValueError(
                f"{path} was written under another plan (mechanism or site sizes); a run can only "
                "be continued under its own"
            )
        for line in lines[1:]:
            if "zero" in line:
                self.zeroed.append(Zeroed(**line["zero"]))
                continue
            if "release" not in line:
                self._owed = int(line["reserved"] if "reserved" in line else line["settled"])
                continue
            release = line["release"]
            release["l2_sensitivity"] = float(release["l2_sensitivity"])
            event = ReleaseEvent(**release)
            self._check(event)
            self.events.append(event)
        self._reserved = self._owed


def read_spent(path: Path) -> tuple[dict[str, Any], int]:
    """Return the plan of a ledger and the rounds to account for, without touching the file.

    Rounds that a run reserved and did not settle count as spent, as in `Ledger`.

    Args:
        path: Of a run that may be going on, broken off or over.

    Raises:
        ValueError: If the file is no ledger.
    """
    try:
        text = path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        released = sum("release" in line for line in lines)
        owed = [line.get("reserved", line.get("settled")) for line in lines[1:]]
        plan: dict[str, Any] = {name: lines[0][name] for name in ("plan", "num_records")}
    except OSError as error:
        raise ValueError(f"{path.absolute()} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, KeyError, IndexError):
        raise ValueError(f"{path} is no ledger of a run") from None
    last = [int(number) for number in owed if number is not None][-1:]
    return plan, max([released, *last])


def describe(value: object) -> Any:
    """Return a dataclass as plain data, each with its type's name: what a plan file holds."""
    if is_dataclass(value) and not isinstance(value, type):
        members = {field.name: describe(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **members}
    return "infinity" if value == float("inf") else value
