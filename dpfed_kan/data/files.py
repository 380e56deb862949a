"""Delimited files of sites, under one schema."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpfed_kan.data.encoding import read_records
from dpfed_kan.data.findings import DataError
from dpfed_kan.data.records import Records, concatenate
from dpfed_kan.data.schema import Schema
from dpfed_kan.streams import Streams


@dataclass(frozen=True, kw_only=True)
class SiteFile:
    """One file.

    Args:
        path: Below the root.
        site: Whose it is; null for a file of many sites with a site column.
    """

    path: str
    site: str | None = None


@dataclass(frozen=True, kw_only=True)
class CSVFiles:
    """Delimited files that the user has.

    Args:
        root: The directory of the files.
        files: The files.
        schema: What each must look like.
    """

    root: str
    files: tuple[SiteFile, ...]
    schema: Schema

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("expected at least one file")
        named = [file.site for file in self.files if file.site is not None]
        if len(set(named)) != len(named):
            raise ValueError("expected one file for each site")
        if any(file.site is None for file in self.files) and self.schema.site_column is None:
            raise ValueError("expected every file to name its site, or a site_column in the schema")

    def load(self, streams: Streams) -> Records:
        """Read all files.

        Raises:
            DataError: With all that is wrong at every site, each named.
        """
        problems: list[str] = []
        parts: list[Records] = []
        for file in self.files:
            path = file_below(self.root, file.path, what="the file of this site")
            try:
                parts.append(read_records(path, self.schema, site=file.site))
            except DataError as error:
                said = str(error)
                named = file.site is None or file.site in said
                problems.append(said if named else f"{file.site}: {said}")
        if problems:
            raise DataError("\n".join(problems))
        return concatenate(parts)


def file_below(root: str, name: str, *, what: str) -> Path:
    """Return the path of a file that the user has.

    Args:
        root: The directory that was given.
        name: Below it.
        what: What the file is and where it is to be had.

    Raises:
        DataError: If there is none; the message says what to get and where to put it.
    """
    path = Path(root) / name
    if not path.is_file():
        raise DataError(
            f"{path.absolute()} is not there: {what}. Put it there, or give the directory that "
            "holds it as data.root=..."
        )
    return path


def first_of(root: str, names: tuple[str, ...], *, what: str) -> Path:
    """Return the first of several names that is there; the error asks for the first.

    Raises:
        DataError: As `file_below`.
    """
    for name in names:
        if (Path(root) / name).is_file():
            return Path(root) / name
    return file_below(root, names[0], what=what)
