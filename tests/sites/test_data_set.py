import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.data.records import Records
from dpfed_kan.sites.data_set import DataSet, SiteKey, identify
from tests.sites.sitekit import COLUMNS, KEY, N, records

PATIENTS = np.array([f"p{k // 2}" for k in range(N)])


def identified(of: Records) -> DataSet:
    return identify(of, key=KEY)


def test_the_order_of_rows_and_columns_does_not_make_another_data_set() -> None:
    here = records(patients=PATIENTS)
    shuffled = here.take(np.random.default_rng(1).permutation(N))
    turned = replace(here, features=here.features[:, ::-1], feature_names=COLUMNS[::-1])
    found = identified(here)
    assert identified(shuffled).digest == found.digest
    assert identified(shuffled).members == found.members
    assert identified(shuffled).arrangement != found.arrangement  # a seeded draw depends on it
    assert identified(turned).digest == found.digest


def test_another_content_is_another_data_set() -> None:
    here = records()
    found = identified(here)
    twice = here.take(np.append(np.arange(N), 0))
    flipped = replace(here, labels=-here.labels)
    nudged = here.features.copy()
    nudged[3, 1] = np.nextafter(nudged[3, 1], 2)
    others = (twice, flipped, replace(here, features=nudged), records(1))
    digests = {identified(other).digest for other in others}
    assert len(digests | {found.digest}) == 5
    assert identified(flipped).members == found.members  # the same people, asked something else


def test_people_are_seen_again_in_another_file() -> None:
    here = records(0, patients=PATIENTS)
    part = records(0, patients=PATIENTS).take(np.arange(5))
    later = replace(records(1), patients=np.array([" p3 "] + [f"q{k}" for k in range(N - 1)]))
    others = replace(records(1), patients=np.array([f"q{k}" for k in range(N)]))
    assert identified(here).members & identified(part).members
    assert identified(here).members & identified(later).members
    assert not identified(here).members & identified(others).members


def test_no_plain_hash_of_a_record_is_kept() -> None:
    here = records(patients=PATIENTS)
    mine, yours = identified(here), identify(here, key=SiteKey(key=b"x" * 32))
    assert not mine.members & yours.members
    assert mine.digest != yours.digest
    for row in range(N):
        for text in (here.features[row].tobytes(), str(PATIENTS[row]).encode()):
            assert hashlib.sha256(text).digest()[:16] not in mine.members
    assert "member" not in repr(mine)
    assert KEY.key.hex() not in repr(KEY)
    assert repr(KEY.key) not in repr(KEY)


def test_units_are_records_or_patients() -> None:
    named, unnamed = identified(records(patients=PATIENTS)), identified(records())
    assert (named.num_units("record"), named.num_units("patient")) == (N, N // 2)
    assert unnamed.num_units("patient") is None


def test_a_key_is_for_its_owner_only_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    made = SiteKey.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SiteKey.load(path) == made
    with pytest.raises(ValueError, match="none is replaced"):
        SiteKey.create(path)
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        SiteKey.load(path)


def test_a_key_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.key"

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as while_writing, pytest.raises(KeyboardInterrupt):
        while_writing.setattr("os.fsync", killed)
        SiteKey.create(path)
    assert not path.exists()
    made = SiteKey.create(path)
    assert SiteKey.load(path) == made


@pytest.mark.parametrize("content", ["", "site zz", "entropy " + "0" * 64, "site " + "g" * 64])
def test_a_file_that_is_no_key_is_refused_without_its_content(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "site.key"
    path.write_text(content)
    os.chmod(path, 0o600)
    with pytest.raises(ValueError, match="not a site key") as no:
        SiteKey.load(path)
    assert not content or content not in str(no.value)
