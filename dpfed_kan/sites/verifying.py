"""Walk a ledger's chain and name the first row that is not as it was written."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dpfed_kan.sites.chain import START, Chain, Row
from dpfed_kan.sites.data_set import hash_members


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a walk along the chain found.

    Args:
        num_rows: Rows that are there.
        head: Hash of the last row: note it elsewhere, and a later cut cannot be hidden.
        bad_row: Number of the first row that is wrong; None if all are right.
        problem: What is wrong with it.
        num_behind: Rows that the second file lacks, as after a crash between the two files.
    """

    num_rows: int
    head: str
    bad_row: int | None = None
    problem: str = ""
    num_behind: int = 0


def verify(chain: Chain) -> Verdict:
    """Return what a walk from the first row to the last finds.

    Guarantees:
        Any row that was edited, deleted, inserted or cut off the end is found, as long as the
        second file was not changed to match. Who may write both files can forge both.

    Raises:
        LedgerError: If a file cannot be read at all.
    """
    heads = chain.heads.all()  # first: another process may be adding rows
    rows = chain.rows()
    found = _walk(rows, heads) or _cut(rows, heads) or _members(chain, rows)
    bad_row, problem = found if found is not None else (None, "")
    return Verdict(
        num_rows=len(rows),
        head=rows[-1].hash if rows else START,
        bad_row=bad_row,
        problem=problem,
        num_behind=max(0, len(rows) - len(heads)),
    )


def _walk(rows: list[Row], heads: list[tuple[int, str]]) -> tuple[int, str] | None:
    before = START
    for place, row in enumerate(rows):
        number = place + 1
        if row.number > number:
            return number, "it was deleted"
        if row.number < number:
            return row.number, "it was inserted"
        if row.hash != row.own_hash:
            return number, "it was edited: its content does not give its hash"
        if row.before != before:
            return number, "it does not follow the row before it: one of the two was replaced"
        if place < len(heads) and heads[place] != (number, row.hash):
            return number, "it was replaced: the second file has another hash for it"
        before = row.hash
    return None


def _cut(rows: list[Row], heads: list[tuple[int, str]]) -> tuple[int, str] | None:
    if len(heads) <= len(rows):
        return None
    return len(rows) + 1, f"it and all after it were cut off: {len(heads)} rows were written"


def _members(chain: Chain, rows: list[Row]) -> tuple[int, str] | None:
    for row in rows:
        content = json.loads(row.content)
        if content["event"] != "data_set":
            continue
        if hash_members(chain.members(content["data_set"])) != content["members_sha256"]:
            return row.number, "the members of its data set were changed"
    return None
