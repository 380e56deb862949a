"""Whatever the bytes of a file: a clear refusal or sound records, and never a value told."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfed_kan.data.encoding import encode
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.reader import read_table
from dpfed_kan.schema_file import load_schema

FIXTURES = Path(__file__).parent / "fixtures"
SCHEMA = load_schema(FIXTURES / "schema.yaml")
CANARY = "CANARY7730"
ORIGINAL = (
    (FIXTURES / "base_site_a.csv").read_bytes().replace(b"A0003,52", f"{CANARY},5{CANARY}".encode())
)
INSERTED = (
    b'"', b"'", b",", b";", b"\n", b"\r", b"\r\n", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe9",
    b"1e400", b"-inf", b"nan", b"=CMD()", CANARY.encode(), b"\t", b"\\", b"x" * 140_000,
    "\u2028٣²".encode(),
)  # fmt: skip


def mutated(content: bytes, seed: int) -> bytes:
    """Truncate, insert, delete, swap columns, join lines, encode otherwise: one to four times."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        match rng.randrange(8):
            case 0:
                content = content[:at]
            case 1:
                content = content[:at] + rng.choice(INSERTED) + content[at:]
            case 2:
                content = content[:at] + content[at + rng.randint(1, 30) :]
            case 3:
                lines = content.split(b"\n")
                rng.shuffle(lines)
                content = b"\n".join(lines)
            case 4:
                first, second = rng.randrange(9), rng.randrange(9)
                lines = [line.split(b",") for line in content.split(b"\n")]
                for cells in lines:
                    if len(cells) > max(first, second):
                        cells[first], cells[second] = cells[second], cells[first]
                content = b"\n".join(b",".join(cells) for cells in lines)
            case 5:
                content = content.replace(b"\n", b"", 1)
            case 6:
                content = content.decode("utf-8", "replace").encode("utf-16")
            case _:
                content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    return content


def check(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    try:
        table = read_table(path, SCHEMA)
        told = "; ".join(str(finding) for finding in table.findings)
        if not table.fatal:
            records = encode(table, SCHEMA)
            assert (np.linalg.norm(records.features, axis=1) <= 1 + 1e-12).all()
    except DataError as error:
        told = str(error)
    told = told.replace(str(path), "")
    assert CANARY not in told
    names = "|".join([*SCHEMA.required, *SCHEMA.ignored])
    quoted = set(re.findall(r"'([^']*)'", told)) - set(names.split("|"))
    assert quoted <= {";", "\\t", "|", ","}, quoted  # nothing of the file is ever quoted


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_mutated_file_is_refused_or_read_without_a_value_told(tmp_path: Path, seed: int) -> None:
    check(mutated(ORIGINAL, seed), tmp_path / "file.csv")


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=400))
def test_bytes_that_are_no_table_at_all_are_refused(tmp_path: Path, content: bytes) -> None:
    check(content, tmp_path / "file.csv")
    header = ORIGINAL.split(b"\n")[0]
    check(header + b"\n" + content, tmp_path / "file.csv")


@pytest.mark.slow
def test_five_thousand_mutated_files(tmp_path: Path) -> None:
    for seed in range(5000):
        check(mutated(ORIGINAL, seed), tmp_path / "file.csv")
