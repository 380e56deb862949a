"""The second file beside a ledger: number and hash of every row, so that a cut is seen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TAIL_BYTES = 200
_HASH_DIGITS = 64

Head = tuple[int, str]


class LedgerError(ValueError):
    """The ledger cannot be used as it is; nothing was written, and no reply may leave."""


class Heads:
    """One line a row, appended after the row is durable; a line torn by a crash is none.

    Args:
        path: Of the file; it has to be there once the ledger is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Head]:
        """Return every row's number and hash.

        Raises:
            LedgerError: If the file is gone or damaged.
        """
        with self._told():
            return self._parsed(self.path.read_bytes())

    def last(self) -> Head | None:
        """Return the last row's number and hash, None if there is none yet.

        Raises:
            LedgerError: As `all`.
        """
        with self._told(), self.path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(start)
            tail = file.read()
        if start > 0:
            tail = tail[tail.find(b"\n") + 1 :]
        found = self._parsed(tail)
        return found[-1] if found else None

    def extend(self, heads: Sequence[Head]) -> None:
        """Append lines, durably; only under the ledger's right to write.

        Raises:
            LedgerError: If the disk refuses.
        """
        with self._told(), self.path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            whole = start + file.read().rfind(b"\n") + 1
            if whole < size:
                file.truncate(whole)
            file.write("".join(f"{number} {digest}\n" for number, digest in heads).encode("ascii"))
            file.flush()
            os.fsync(file.fileno())

    def _parsed(self, text: bytes) -> list[Head]:
        found = []
        for line in text[: text.rfind(b"\n") + 1].splitlines():
            number, _, digest = line.decode("ascii", errors="replace").partition(" ")
            if not (number.isascii() and number.isdecimal()) or len(digest) != _HASH_DIGITS:
                raise LedgerError(f"{self.path} is damaged; put it back from a copy")
            found.append((int(number), digest))
        return found

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerError(
                f"{self.path.absolute()}, which lies beside the ledger, cannot be used: "
                f"{error.strerror}; put it back from a copy if it is gone, else see that its "
                "directory can be written and the disk is not full"
            ) from None
