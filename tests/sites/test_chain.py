import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpfed_kan.sites.chain import Chain, Row
from dpfed_kan.sites.heads import LedgerError
from dpfed_kan.sites.verifying import Verdict, verify
from tests.sites.sitekit import open_ledger, plan, reserve

NUM_ROWS = 8  # begin, data_set, reserve, five commits


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = open_ledger(tmp_path)
    reserve(ledger, "one", plan(0.5))
    for t in range(5):
        ledger.commit("one", t, broadcast=f"b{t}", reply=f"r{t}")
    ledger.chain.close()
    return tmp_path / "site.ledger"


def walked(path: Path) -> Verdict:
    with closing(Chain(path)) as chain:
        return verify(chain)


def tamper(path: Path, *statements: str, then: Callable[[sqlite3.Connection], None]) -> None:
    """What somebody with the file, an SQLite shell and time would do."""
    with closing(sqlite3.connect(path)) as database:
        for table in ("rows", "members"):
            for verb in ("update", "delete"):
                database.execute(f"DROP TRIGGER {table}_{verb}")
        then(database)
        for statement in statements:
            database.execute(statement)
        database.commit()


def rehash(database: sqlite3.Connection, first: int) -> None:
    """Make the chain consistent again from a row on."""
    rows = database.execute("SELECT number, content, before FROM rows ORDER BY number").fetchall()
    before = ""
    for number, content, was in rows:
        row = Row(number=number, content=content, before=before or was, hash="")
        if number >= first:
            database.execute(
                "UPDATE rows SET before = ?, hash = ? WHERE number = ?",
                (row.before, row.own_hash, number),
            )
        before = row.own_hash


def nothing(_: sqlite3.Connection) -> None:
    return


CHEAPER = "UPDATE rows SET content = replace(content, '\"delta\":1e-06', '\"delta\":1e-09')"
EDITS = {
    "a cheaper reservation": (f"{CHEAPER} WHERE number = 3", 3, "edited"),
    "another round": (
        "UPDATE rows SET content = replace(content, '\"round_index\":2', '\"round_index\":1') "
        "WHERE number = 6",
        6,
        "edited",
    ),
    "a space": ("UPDATE rows SET content = content || ' ' WHERE number = 4", 4, "edited"),
    "a hash": ("UPDATE rows SET hash = replace(hash, 'a', 'b') WHERE number = 5", 5, "edited"),
    "a link": (f"UPDATE rows SET before = '{'1' * 64}' WHERE number = 5", 5, "edited"),
    "a row deleted": ("DELETE FROM rows WHERE number = 6", 6, "deleted"),
    "the first row deleted": ("DELETE FROM rows WHERE number = 1", 1, "deleted"),
    "a row inserted before the first": (
        "INSERT INTO rows (number, content, before, hash) SELECT 0, content, before, hash "
        "FROM rows WHERE number = 2",
        0,
        "inserted",
    ),
    "the tail cut": ("DELETE FROM rows WHERE number > 6", 7, "8 rows were written"),
    "a member taken out": (
        "DELETE FROM members WHERE member = (SELECT min(member) FROM members)",
        2,
        "members",
    ),
}


def test_an_honest_ledger_is_whole(path: Path) -> None:
    found = walked(path)
    assert (found.num_rows, found.bad_row, found.num_behind) == (NUM_ROWS, None, 0)


@pytest.mark.parametrize("name", EDITS)
def test_the_first_row_that_was_changed_is_named(path: Path, name: str) -> None:
    statement, row, problem = EDITS[name]
    tamper(path, statement, then=nothing)
    found = walked(path)
    assert (found.bad_row, problem in found.problem) == (row, True), found
    with pytest.raises(LedgerError):
        open_ledger(path.parent)  # and nothing more is spent on it


def test_a_row_that_was_given_a_fitting_hash_breaks_the_next_link(path: Path) -> None:
    def forge(database: sqlite3.Connection) -> None:
        database.execute(f"{CHEAPER} WHERE number = 3")
        (content, before) = database.execute(
            "SELECT content, before FROM rows WHERE number = 3"
        ).fetchone()
        own = Row(number=3, content=content, before=before, hash="").own_hash
        database.execute("UPDATE rows SET hash = ? WHERE number = 3", (own,))

    tamper(path, then=forge)
    assert walked(path).bad_row == 3  # the second file knows the hash it had
    heads = path.with_name(path.name + ".heads")
    heads.write_text("".join(heads.read_text().splitlines(keepends=True)[:2]))
    found = walked(path)
    assert (found.bad_row, "does not follow" in found.problem) == (4, True)


def test_a_chain_made_anew_is_seen_by_the_second_file(path: Path) -> None:
    def forge(database: sqlite3.Connection) -> None:
        database.execute(f"{CHEAPER} WHERE number = 3")
        rehash(database, 3)

    tamper(path, then=forge)
    found = walked(path)
    assert (found.bad_row, "second file" in found.problem) == (3, True)


def test_what_both_files_forged_alike_hide_only_a_noted_head_shows(path: Path) -> None:
    noted = walked(path).head
    heads = path.with_name(path.name + ".heads")
    tamper(path, "DELETE FROM rows WHERE number > 6", then=nothing)
    heads.write_text("".join(heads.read_text().splitlines(keepends=True)[:6]))
    found = walked(path)
    assert found.bad_row is None  # README: said openly
    assert found.head != noted


def test_a_ledger_from_an_old_copy_is_not_gone_on_with(path: Path) -> None:
    ledger = open_ledger(path.parent)
    old = path.read_bytes()
    ledger.commit("one", 5, broadcast="b5", reply="r5")
    path.write_bytes(old)
    with pytest.raises(LedgerError, match="cut, changed, or put back"):
        ledger.commit("one", 6, broadcast="b6", reply="r6")
    with pytest.raises(LedgerError, match="row 9"):
        open_ledger(path.parent)


@pytest.mark.parametrize("torn", ["", "9 abc"])
def test_a_crash_between_the_two_files_is_healed(path: Path, torn: str) -> None:
    heads = path.with_name(path.name + ".heads")
    whole = heads.read_text()
    heads.write_text("".join(whole.splitlines(keepends=True)[:-1]) + torn)
    found = walked(path)
    assert (found.bad_row, found.num_behind) == (None, 1)
    open_ledger(path.parent)
    assert heads.read_text() == whole


def test_files_that_belong_together_stay_together(path: Path) -> None:
    heads = path.with_name(path.name + ".heads")
    text = heads.read_text()
    heads.unlink()
    with pytest.raises(LedgerError, match="put it back"):
        walked(path)
    with pytest.raises(LedgerError, match="put it back"):
        open_ledger(path.parent)
    heads.write_text("x" + text)
    with pytest.raises(LedgerError, match="damaged"):
        open_ledger(path.parent)
    heads.write_text(text)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(LedgerError, match="forget what was spent"):
        open_ledger(path.parent)
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="row 1"):
        open_ledger(path.parent)
    path.write_bytes(content)
    open_ledger(path.parent)


def test_rows_can_only_be_added(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in (
            "UPDATE rows SET content = '{}'",
            "DELETE FROM rows",
            "DELETE FROM members",
            "UPDATE members SET data_set = ''",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="append only"):
                database.execute(statement)
