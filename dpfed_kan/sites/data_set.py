"""Which records a run trains on, told apart by keyed digests that give nobody a record back."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpfed_kan.data.records import Records
from dpfed_kan.privacy.mechanism import PrivacyUnit
from dpfed_kan.sites.plan import columns_hash

_KEY_BYTES = 32
_MEMBER_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class SiteKey:
    """A site's own secret: without it no digest in the ledger can be tried on a known record.

    Args:
        key: 32 secret bytes.
    """

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"expected a site key of {_KEY_BYTES} bytes, got {len(self.key)}")

    @classmethod
    def create(cls, path: Path) -> SiteKey:
        """Draw a key and write it to a new file that only its owner can read.

        Raises:
            ValueError: If the file is there already or cannot be written.
        """
        made = cls(key=secrets.token_bytes(_KEY_BYTES))
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(f"site {made.key.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(fresh, path)  # whole or not at all, and never over another one
            finally:
                fresh.unlink()
        except OSError as error:
            raise ValueError(
                f"the site key {path} cannot be written: {error.strerror}; a ledger is of use only "
                "with the key that it was begun with, so none is replaced"
            ) from None
        return made

    @classmethod
    def load(cls, path: Path) -> SiteKey:
        """Read a key that `create` wrote.

        Raises:
            ValueError: If it cannot be read, others may read it, or it is no key; its content is
                not shown.
        """
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise ValueError(f"others may read the site key {path}: chmod 600 it")
            word, _, key = path.read_text(encoding="ascii").strip().partition(" ")
            if word != "site" or len(key) != 2 * _KEY_BYTES:
                raise ValueError
            return cls(key=bytes.fromhex(key))
        except OSError as error:
            raise ValueError(f"the site key {path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(str(error) if "chmod" in str(error) else _NO_KEY % path) from None

    def digest(self, purpose: str, content: bytes) -> str:
        """Return a keyed digest in hexadecimal; no two purposes share one."""
        return self.digest_bytes(purpose, content).hex()

    def digest_bytes(self, purpose: str, content: bytes) -> bytes:
        """Return a keyed digest, 32 bytes."""
        return hmac.digest(self.key, purpose.encode() + b"\0" + content, "sha256")


_NO_KEY = "%s is not a site key of this program"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What a ledger knows of a data set: sizes and keyed digests.

    Args:
        digest: Of the multiset of records, labels and patients: the order of rows and columns
            does not matter. It names the data set.
        arrangement: Of the same in their order, on which a seeded draw depends.
        members: One for each record without its label, and one for each patient: a data set that
            shares one with another has some of the same people, as far as can be seen.
        num_records: Rows.
        num_patients: Patients, or None where they are not named.
        columns_sha256: `columns_hash`, public.
    """

    digest: str
    arrangement: str
    members: frozenset[bytes] = field(repr=False)
    num_records: int
    num_patients: int | None
    columns_sha256: str

    def num_units(self, unit: PrivacyUnit) -> int | None:
        """Return n_k in units of privacy; None if patients are wanted and not named."""
        return self.num_records if unit == "record" else self.num_patients

    @property
    def members_sha256(self) -> str:
        """Plain hash of the members in order, by which a ledger tells that none was taken out."""
        return hash_members(self.members)


def hash_members(members: frozenset[bytes]) -> str:
    """Return the hash of a set of members."""
    return hashlib.sha256(b"".join(sorted(members))).hexdigest()


def identify(records: Records, *, key: SiteKey) -> DataSet:
    """Return what a ledger may know of these records.

    Guarantees:
        Nothing of a record can be had or tried without the key.

    Args:
        records: What a run trains on at this site.
        key: The site's own.
    """
    order = sorted(range(len(records.feature_names)), key=lambda k: records.feature_names[k])
    names = "\n".join(records.feature_names[k] for k in order).encode()
    features = np.ascontiguousarray(records.features[:, order] + 0.0, dtype="<f8")  # -0 is 0
    labels = np.asarray(records.labels + 0.0, dtype="<f8")
    members: set[bytes] = set()
    rows = []
    for place in range(len(records)):
        member = key.digest_bytes("record", names + b"\0" + features[place].tobytes())
        members.add(member[:_MEMBER_BYTES])
        whose = b""
        if records.patients is not None:
            whose = key.digest_bytes("patient", str(records.patients[place]).strip().encode())
            members.add(whose[:_MEMBER_BYTES])
        rows.append(member + whose + labels[place].tobytes())
    patients = records.patients
    return DataSet(
        digest=key.digest("data set", b"".join(sorted(rows))),
        arrangement=key.digest("arrangement", b"".join(rows)),
        members=frozenset(members),
        num_records=len(records),
        num_patients=None if patients is None else len(set(patients.tolist())),
        columns_sha256=columns_hash(records.feature_names, records.num_classes),
    )
