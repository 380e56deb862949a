"""Named random streams: one key, one stream per (purpose, round, site), nothing global."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import numpy as np
from randomgen import AESCounter

from dpfed_kan._validate import check_count

Purpose = Literal["noise", "sampling", "initial_params", "synthetic_data", "split", "partition"]

_KEY_BYTES = 32
_SEEDED, _FRESH = "seeded", "entropy"


@dataclass(frozen=True, kw_only=True)
class Streams:
    """A secret key from which every stream of a run is derived.

    A stream is AES-128 in counter mode under a key of its own, BLAKE2b(key, purpose, round,
    site): streams of different names are independent, and a stream can be opened again at any
    time, which is how Z_{t-1} is regenerated instead of stored.

    Guarantees:
        The key never appears in `repr`, in an error or in a log.

    Args:
        key: 32 secret bytes.
        seeded: Whether the key came from a seed, so that the run is a declared simulation
            whose noise anybody can reproduce.
    """

    key: bytes = field(repr=False)
    seeded: bool

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"expected a key of {_KEY_BYTES} bytes, got {len(self.key)}")

    @classmethod
    def from_entropy(cls) -> Self:
        """Draw a key from the operating system: the only source fit for real records."""
        return cls(key=secrets.token_bytes(_KEY_BYTES), seeded=False)

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """Derive a key from a seed: for simulations, whose reports say so."""
        check_count("seed", seed, low=0)
        return cls(key=_digest(b"dpfed_kan seed", seed, size=_KEY_BYTES), seeded=True)

    def generator(self, purpose: Purpose, *, round_index: int | None = None) -> np.random.Generator:
        """Open a stream at its start.

        Args:
            purpose: What the numbers are for; no two purposes share a stream.
            round_index: The round t, from 0, for streams that have one per round.
        """
        key = _digest(self.key, "stream", purpose, round_index, size=16)
        return np.random.Generator(AESCounter(key=int.from_bytes(key, "little"), counter=0))

    def for_site(self, site: str) -> Self:
        """Return the streams of one simulated site, independent of every other site's."""
        key = _digest(self.key, "site", site, size=_KEY_BYTES)
        return type(self)(key=key, seeded=self.seeded)

    def for_run(self, run_id: str) -> Self:
        """Return the streams of one run of a key that serves many: no two runs draw alike."""
        return type(self)(key=_digest(self.key, "run", run_id, size=_KEY_BYTES), seeded=self.seeded)

    def save(self, path: Path) -> None:
        """Write the key to a new file that only its owner can read."""
        text = f"{_SEEDED if self.seeded else _FRESH} {self.key.hex()}\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a key that `save` wrote.

        Raises:
            ValueError: If the file is not such a key; its content is not shown.
        """
        source, _, key = path.read_text(encoding="ascii").strip().partition(" ")
        if source not in (_SEEDED, _FRESH) or len(key) != 2 * _KEY_BYTES:
            raise ValueError(f"{path} is not a key file of this program")
        return cls(key=bytes.fromhex(key), seeded=source == _SEEDED)


def _digest(key: bytes, *names: str | int | None, size: int) -> bytes:
    return hashlib.blake2b(json.dumps(names).encode(), key=key, digest_size=size).digest()
