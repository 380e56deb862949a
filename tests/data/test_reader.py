"""The trials D01-D10, F04, F05, F07, P10: invented records under fixtures/."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.cli import main
from dpfed_kan.config import ConfigError, build, build_as, to_config
from dpfed_kan.data.encoding import encode, encoded_names, read_records
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.reader import Table, read_table
from dpfed_kan.data.schema import Categorical, Label, Numeric, Ordinal, Schema, same_code
from dpfed_kan.schema_file import load_schema

FIXTURES = Path(__file__).parent / "fixtures"
SCHEMA = load_schema(FIXTURES / "schema.yaml")
CHECK = ("check-data", str(FIXTURES / "schema.yaml"))


def read(name: str, **changes: Any) -> Table:
    return read_table(FIXTURES / f"{name}.csv", replace(SCHEMA, **changes))


def with_column(name: str, **changes: Any) -> dict[str, Any]:
    columns = (replace(c, **changes) if c.name == name else c for c in SCHEMA.columns)
    return {"columns": tuple(columns)}


def said(table: Table) -> str:
    return "; ".join(str(finding) for finding in table.findings)


def classes(*names: str, codes: list[int] | None = None) -> list[dict[str, Any]]:
    return [{"name": n, "codes": [k] if codes is None else codes} for k, n in enumerate(names)]


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "file.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_declared_codes_become_missing_and_other_text_is_an_error_by_row() -> None:  # D01
    table = read("d01_text_in_numeric")
    assert [str(finding) for finding in table.fatal] == [
        "column 'trestbps': not a number in row 4",
        "column 'oldpeak': not a number in row 6",
    ]
    assert table.numbers["age"][9] == 61  # ' 61 '
    assert np.isnan(table.numbers["chol"][[1, 8]]).all()
    assert len(table.numbers) == 7
    for value in ("mmHg", "<0.5", "120", "NK"):
        assert value not in said(table)
    undeclared = read("d01_text_in_numeric", missing_codes=())
    assert "column 'chol': not a number in rows 3, 10" in said(undeclared)


def test_sentinels_are_counted_by_column_until_they_are_declared() -> None:  # D02
    found = {finding.column: len(finding.rows) for finding in read("d02_sentinels").findings}
    assert found == {"age": 1, "trestbps": 2, "chol": 3, "thalach": 1, "oldpeak": 1}
    for value in ("-9", "999"):
        assert value not in said(read("d02_sentinels"))
    coded = read("d02_sentinels", **with_column("chol", missing_codes=(0,)))
    assert np.nanmean(coded.numbers["chol"]) == pytest.approx(273.8, abs=0.05)
    zeros_stay = read("d02_sentinels", **with_column("chol", low=0.0))
    assert np.nanmean(zeros_stay.numbers["chol"]) == pytest.approx(232.8, abs=0.1)


@pytest.mark.parametrize(
    ("policy", "value", "fatal"),
    [("reject", math.nan, True), ("clip", 100.0, False), ("missing", math.nan, False)],
)
def test_a_value_out_of_range_is_rejected_clipped_or_missing(
    policy: str, value: float, fatal: bool
) -> None:
    table = read("d02_sentinels", **with_column("chol", out_of_range=policy))
    np.testing.assert_equal(table.numbers["chol"][2], value)
    assert any(finding.column == "chol" for finding in table.fatal) == fatal


def test_a_european_file_equals_its_reference_and_undeclared_is_a_hint() -> None:  # D03
    reference = read("d03_reference")
    european = read("d03_european", delimiter=";", decimal=",")
    excel = read("d03_bom_crlf")
    for other in (european, excel):
        for name in reference.numbers:
            np.testing.assert_array_equal(other.numbers[name], reference.numbers[name])
        np.testing.assert_array_equal(other.labels, reference.labels)
        assert other.patients is not None
        assert other.patients.tolist()[0] == "E0001"
    with pytest.raises(DataError, match=r"found 1 column, expected 9, is the separator ';'\?"):
        read("d03_european")
    assert "column 'oldpeak': not a number in rows" in said(read("d03_european", delimiter=";"))


def test_grades_need_a_cut_and_text_labels_a_mapping() -> None:  # D05
    grades = read("d05_labels_0_4")
    assert "neither a positive nor a negative code (declare it, or give a cut or" in said(grades)
    cut = read("d05_labels_0_4", label=Label(name="target", cut=0))
    assert ((cut.labels < 0).sum(), (cut.labels > 0).sum()) == (4, 16)
    codes = Label(name="target", positive=(1, 2, 3, 4), negative=(0,))
    np.testing.assert_array_equal(read("d05_labels_0_4", label=codes).labels, cut.labels)
    assert read("d05_labels_text").fatal
    text = Label(name="target", positive=("present",), negative=("absent",))
    assert not read("d05_labels_text", label=text).fatal
    assert "which the cut needs" in said(read("d05_labels_text", label=Label(name="target", cut=0)))


def test_a_constant_column_is_scaled_by_its_range_and_named() -> None:  # D07
    assert "column 'trestbps': the same value" in said(read("d07_constant_train"))
    place = encoded_names(SCHEMA).index("trestbps")
    train, later = (
        encode(read(f"d07_constant_{name}"), SCHEMA).features * math.sqrt(14)
        for name in ("train", "eval")
    )
    assert np.isfinite(later).all()
    np.testing.assert_allclose(train[:, place], (130 - 150) / 70)
    expected = (np.array([130, 130, 131, 129, 130, 160]) - 150) / 70
    np.testing.assert_allclose(later[:, place], expected)


def test_identifiers_are_dropped_and_errors_hold_no_content() -> None:  # D10
    table = read("d10_identifiers", ignored=("name", "mrn"))
    assert [str(finding) for finding in table.fatal] == [
        "column 'chol': not a number in row 5",
        "column 'target': neither a positive nor a negative code (declare it, or give a cut or "
        "classes) in row 7",
    ]
    path = FIXTURES / "d10_identifiers.csv"
    for schema in (SCHEMA, replace(SCHEMA, ignored=("name", "mrn"))):
        with pytest.raises(DataError) as error:
            read_records(path, schema, site="north")
        chain = [error.value, error.value.__cause__, error.value.__context__]
        assert not any("CANARY" in f"{link} {link!r}" for link in chain)
    assert "CANARY" not in repr(table.findings)


def test_the_command_shows_no_content_either(capsys: pytest.CaptureFixture[str]) -> None:  # D10
    for arguments in ([], ["--json"]):
        with pytest.raises(SystemExit):
            main([*CHECK, str(FIXTURES / "d10_identifiers.csv"), *arguments])
        shown = capsys.readouterr()
        assert "CANARY" not in shown.out + shown.err


def test_an_empty_file_is_named_and_a_bare_header_has_no_rows() -> None:  # F04
    with pytest.raises(DataError, match=r"f04_zero_bytes.csv: the file is empty"):
        read("f04_zero_bytes")
    assert len(encode(read("f04_header_only"), SCHEMA)) == 0


def test_one_row_keeps_its_shape() -> None:  # F05
    assert encode(read("f05_one_row"), SCHEMA).features.shape == (1, 14)
    assert len(encode(read("f05_five_rows"), SCHEMA)) == 5


def test_a_missing_or_extra_column_is_named() -> None:  # F07
    with pytest.raises(DataError, match="column 'oldpeak' is missing"):
        read("f07_site_missing_column")
    with pytest.raises(DataError, match="column 7 of the file, after 'chol', is not in the schema"):
        read("f07_site_extra_column")
    assert not read("f07_site_extra_column", ignored=("bmi",)).fatal


def test_infinities_and_absurd_numbers_are_named_by_column_and_row() -> None:  # P10
    assert [str(finding) for finding in read("p10_inf_cells").fatal] == [
        "column 'chol': not a number in rows 5, 11",
        "column 'oldpeak': outside the public range in row 9",
    ]


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "0x10", "1,5", "265,000", "1 2", "¹", "٣"])
def test_only_a_plain_number_is_a_number(tmp_path: Path, text: str) -> None:
    schema = Schema(
        columns=(Numeric(name="x", low=0, high=1e6),),
        label=Label(name="y", positive=(1,), negative=(0,)),
    )
    table = read_table(written(tmp_path, f'x,y\n"{text}",1\n'), schema)
    assert said(table) == "column 'x': not a number in row 2"


@pytest.mark.parametrize("text", ["63", "63.0", " 63 ", "+63", "6.3e1", "063"])
def test_a_number_may_be_written_in_any_way(text: str) -> None:
    assert same_code(text) == same_code(63) == 63.0


def test_short_and_long_rows_are_never_padded(tmp_path: Path) -> None:
    schema = Schema(
        columns=(Numeric(name="x", low=0, high=9),),
        label=Label(name="y", positive=(1,), negative=(0,)),
    )
    table = read_table(written(tmp_path, "x,y\n1,1\n2\n3,0,0\n\n4,0\n"), schema)
    assert [str(finding) for finding in table.fatal] == [
        "fewer cells than the header in row 3",
        "more cells than the header in row 4",
    ]
    assert table.rows.tolist() == [2, 6]


def test_repeated_rows_are_noted_and_kept(tmp_path: Path) -> None:
    schema = Schema(
        columns=(Numeric(name="x", low=0, high=9),),
        label=Label(name="y", positive=(1,), negative=(0,)),
    )
    table = read_table(written(tmp_path, "x,y\n1,1\n2,0\n1,1\n"), schema)
    assert said(table) == "the same cells as an earlier row in row 4"
    assert len(encode(table, schema)) == 3


def test_every_kind_of_column_is_encoded_by_public_constants(tmp_path: Path) -> None:
    schema = Schema(
        columns=(
            Numeric(name="n", low=0, high=10, missing="indicate", fill=10),
            Ordinal(name="o", categories=("low", "mid", "high")),
            Categorical(name="c", categories=("a", "b"), missing="indicate"),
        ),
        label=Label(name="y", positive=("yes",), negative=("no",)),
    )
    path = written(tmp_path, "y,c,o,n\nyes,a,high,0\nno,,low,\nno,b,mid,5\n")
    records = read_records(path, schema)
    names = ("n", "n is missing", "o", "c=a", "c=b", "c is missing")
    assert records.feature_names == names
    unit = [[-1, -1, 1, 1, -1, -1], [1, 1, -1, -1, -1, 1], [0, -1, 0, -1, 1, -1]]
    np.testing.assert_allclose(records.features, np.array(unit) / math.sqrt(6))
    assert (np.linalg.norm(records.features, axis=1) <= 1 + 1e-15).all()
    assert records.labels.tolist() == [1, -1, -1]


def test_a_record_is_encoded_alike_whoever_is_beside_it() -> None:
    alone = encode(read("f05_one_row"), SCHEMA).features[0]
    crowd = encode(read("base_site_a"), SCHEMA).features[0]
    np.testing.assert_array_equal(alone, crowd)


def test_missing_values_are_refused_unless_something_is_declared(tmp_path: Path) -> None:
    path = written(tmp_path, "x,y\n1,1\n,0\n")
    label = Label(name="y", positive=(1,), negative=(0,))

    def kept(missing: Any) -> int:
        column = Numeric(name="x", low=0, high=9, missing=missing)
        return len(read_records(path, Schema(columns=(column,), label=label)))

    with pytest.raises(DataError, match="column 'x': missing in row 3"):
        kept("reject")
    assert (kept("drop"), kept("indicate")) == (1, 2)


def test_the_wrong_encoding_is_told_by_line(tmp_path: Path) -> None:
    path = written(tmp_path, "pid,name\nA,Müller\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 2 is not utf-8 text; declare"):
        read_table(path, SCHEMA)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"columns": [{"type": "numeric", "name": "x", "low": 3, "high": 1}]}, "low <= high"),
        ({"columns": [{"type": "numbers", "name": "x"}]}, "type to be one of numeric, ordinal"),
        ({"columns": [{"type": "numeric", "name": "x", "low": 0, "hihg": 1}]}, "columns[0].high?"),
        ({"label": {"name": "y", "positive": [True], "negative": [0]}}, "in quotes if it is yes"),
        ({"label": {"name": "y", "positive": [1], "negative": ["1.0"]}}, "in both classes"),
        ({"label": {"name": "y", "positive": [1]}}, "both not empty"),
        ({"label": {"name": "y", "positive": [1], "negative": [0], "cut": 2}}, "or else a cut"),
        ({"label": {"name": "y", "cut": 0, "classes": classes("a", "b", "c")}}, "or else classes"),
        ({"label": {"name": "y", "classes": classes("a", "b")}}, "at least three classes"),
        ({"label": {"name": "y", "classes": classes("a", "b", "a")}}, "its own name"),
        ({"label": {"name": "y", "classes": classes("a", "b", "c", codes=[7])}}, "than one class"),
        ({"label": {"name": "y", "classes": classes("a", "b", "c", codes=[])}}, "one code"),
        ({"label": {"name": "x", "cut": 0}}, "declared once"),
        ({"delimiter": ".", "decimal": "."}, "delimiter='.'"),
        ({"encoding": "utf-99"}, "not known"),
        ({"site_column": "where"}, "site_column and site_names together"),
        ({"header": ["x"]}, "it lacks ['y']"),
    ],
)
def test_a_wrong_schema_is_told_at_once(change: dict[str, Any], what: str) -> None:
    good: dict[str, Any] = {
        "columns": [{"type": "numeric", "name": "x", "low": 0, "high": 1}],
        "label": {"name": "y", "positive": [1], "negative": [0]},
    }
    build_as(Schema, good)
    with pytest.raises(ConfigError) as error:
        build_as(Schema, good | change)
    assert what in str(error.value)


def test_a_schema_survives_the_way_through_a_configuration() -> None:
    assert build(to_config(SCHEMA)) == SCHEMA


def test_check_data_answers_in_counts(capsys: pytest.CaptureFixture[str]) -> None:
    main([*CHECK, str(FIXTURES / "base_site_a.csv")])
    assert "Accepted: 40 of 40 rows of 40 patients" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(SystemExit) as stop:
        main([*CHECK, str(FIXTURES / "f04_zero_bytes.csv")])
    assert "the file is empty" in str(stop.value.code)
    with pytest.raises(SystemExit) as stop:
        main(["check-data", str(FIXTURES / "nowhere.yaml"), str(FIXTURES / "f04_zero_bytes.csv")])
    assert "cannot be read" in str(stop.value.code)
