"""An append-only file of rows, each holding the hash of the one before; SQLite underneath.

Beside the file lies a second one, `.heads`, with the number and hash of every row: a file that
was cut, or put back from an old copy, is behind it.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfed_kan.sites.heads import Heads, LedgerError
from dpfed_kan.sites.plan import canonical

_WAIT_SECONDS = 60.0
START = "0" * 64
_SCHEMA = (
    """CREATE TABLE rows (
      number INTEGER PRIMARY KEY, content TEXT NOT NULL, before TEXT NOT NULL, hash TEXT NOT NULL,
      event TEXT AS (json_extract(content, '$.event')),
      run TEXT AS (json_extract(content, '$.run')),
      round_index INTEGER AS (json_extract(content, '$.round_index')))""",
    "CREATE INDEX rows_by_run ON rows (run, event, round_index)",
    "CREATE INDEX rows_by_event ON rows (event)",
    """CREATE TABLE members (member BLOB NOT NULL, data_set TEXT NOT NULL,
      PRIMARY KEY (member, data_set)) WITHOUT ROWID""",
    "CREATE INDEX members_by_data_set ON members (data_set)",
    *(
        f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
        "BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for table in ("rows", "members")
        for verb in ("UPDATE", "DELETE")
    ),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    Args:
        number: From 1, without gaps.
        content: Canonical JSON.
        before: Hash of the row before; zeros for the first.
        hash: Of number, `before` and content.
    """

    number: int
    content: str
    before: str
    hash: str

    @property
    def own_hash(self) -> str:
        """What `hash` has to be."""
        text = f"{self.number}\n{self.before}\n{self.content}"
        return hashlib.sha256(text.encode()).hexdigest()


class Chain:
    """The file, open; each process opens its own, also after a fork.

    Args:
        path: Of the SQLite file.
        create: Whether an absent one is begun.

    Raises:
        LedgerError: If it is absent, cannot be opened, or has lost rows.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self._one_thread = threading.RLock()
        self.heads = Heads(path.with_name(path.name + ".heads"))
        if not path.exists():
            if not create:
                raise LedgerError(f"there is no ledger {path.absolute()}")
            if self.heads.path.exists():
                raise LedgerError(
                    f"{self.heads.path} is there, but the ledger {path} is gone: put both back "
                    "from a copy; a fresh ledger would forget what was spent"
                )
        with self._told():
            if create and not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._database = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
                uri=True,
                timeout=_WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            # FULL does not make a commit durable in this mode: the directory is not synced
            self._database.execute("PRAGMA synchronous = EXTRA")
            self._database.execute("PRAGMA fullfsync = ON")
            if create:
                self._begin()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _begin(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            if not self._all("SELECT 1 FROM sqlite_master WHERE name = 'rows'"):
                for statement in _SCHEMA:
                    self._database.execute(statement)
                self.heads.extend([])
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the only right to write; all that is appended within is durable after, or nothing.

        Raises:
            LedgerError: If the disk refuses, another process holds the right too long, or the
                file has lost rows.
        """
        with self._one_thread, self._told():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._check_heads()
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
            self._write_heads()

    def append(self, content: Mapping[str, Any]) -> None:
        """Add a row; only within `writing`."""
        last = self.last_row()
        number, before = (1, START) if last is None else (last.number + 1, last.hash)
        row = Row(number=number, content=canonical(content), before=before, hash="")
        self._database.execute(
            "INSERT INTO rows (number, content, before, hash) VALUES (?, ?, ?, ?)",
            (row.number, row.content, row.before, row.own_hash),
        )

    def add_members(self, data_set: str, members: Iterable[bytes]) -> None:
        """Add the members of a data set; only within `writing`."""
        self._database.executemany(
            "INSERT INTO members VALUES (?, ?)", ((member, data_set) for member in members)
        )

    def rows(self, event: str | None = None, *, run: str | None = None) -> list[Row]:
        """Return rows in their order: all, of one event, or of one event and run."""
        where, given = "", tuple(word for word in (event, run) if word is not None)
        if event is not None:
            where = " WHERE event = ?" + (" AND run = ?" if run is not None else "")
        with self._told():
            return self._rows(f"{where} ORDER BY number", given)

    def round_row(self, run: str, round_index: int) -> Row | None:
        """Return the commit of a round."""
        with self._told():
            found = self._rows(
                " WHERE run = ? AND event = 'commit' AND round_index = ?", (run, round_index)
            )
        return found[0] if found else None

    def last_round(self, run: str) -> int | None:
        """Return the last round that was committed."""
        with self._told():
            ((last,),) = self._all(
                "SELECT max(round_index) FROM rows WHERE run = ? AND event = 'commit'", (run,)
            )
        return None if last is None else int(last)

    def others_answered_since(self, number: int, *, run: str) -> bool:
        """Whether any other run has a commit after a row."""
        sql = "SELECT 1 FROM rows WHERE number > ? AND event = 'commit' AND run <> ? LIMIT 1"
        with self._told():
            return bool(self._all(sql, (number, run)))

    def last_row(self) -> Row | None:
        """Return the last row."""
        with self._told():
            found = self._rows(" ORDER BY number DESC LIMIT 1", ())
        return found[0] if found else None

    def members(self, data_set: str) -> frozenset[bytes]:
        """Return the members of a data set."""
        with self._told():
            found = self._all("SELECT member FROM members WHERE data_set = ?", (data_set,))
        return frozenset(bytes(member) for (member,) in found)

    def sharing(self, members: Iterable[bytes]) -> set[str]:
        """Return the data sets that have one of these members."""
        found: set[str] = set()
        with self._told():
            for member in members:
                sql = "SELECT data_set FROM members WHERE member = ?"
                found.update(name for (name,) in self._all(sql, (member,)))
        return found

    def overlapping(self, data_set: str) -> set[str]:
        """Return a data set and those that share a member with it."""
        sql = (
            "SELECT DISTINCT b.data_set FROM members a JOIN members b ON a.member = b.member "
            "WHERE a.data_set = ?"
        )
        with self._told():
            return {data_set, *(name for (name,) in self._all(sql, (data_set,)))}

    def _check_heads(self) -> None:
        """Refuse to go on after rows that were written once and are not there now."""
        known = self.heads.last()
        if known is None:
            return
        found = self._rows(" WHERE number = ?", (known[0],))
        if not found or found[0].hash != known[1]:
            raise LedgerError(
                f"the ledger {self.path} lacks row {known[0]} as {self.heads.path.name} has it: it "
                "was cut, changed, or put back from an old copy; see `dpfed-kan ledger verify`"
            )

    def _write_heads(self) -> None:
        """Bring the second file up to the first: also after a crash between the two."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            known = self.heads.last()
            rows = self._rows(" WHERE number > ? ORDER BY number", (known[0] if known else 0,))
            self.heads.extend([(row.number, row.hash) for row in rows])
        finally:
            self._database.execute("ROLLBACK")

    def _rows(self, clause: str, given: tuple[Any, ...]) -> list[Row]:
        sql = f"SELECT number, content, before, hash FROM rows{clause}"
        return [
            Row(number=number, content=content, before=before, hash=digest)
            for number, content, before, digest in self._all(sql, given)
        ]

    def _all(self, sql: str, given: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._database.execute(sql, given).fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what the disk said in words that help."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(
                f"the ledger {self.path.absolute()} cannot be used ({error}): see that its "
                "directory can be written, the disk is not full and no other process holds it; "
                "nothing was added"
            ) from None
