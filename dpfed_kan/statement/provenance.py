"""What a statement rests on that can be checked again: hashes, versions."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dpfed_kan import __version__
from dpfed_kan.run_directory import RunDirectory
from dpfed_kan.sites.plan import Plan

_ACCOUNTANTS = ("dp-accounting", "prv-accountant")
_ARITHMETIC = ("numpy", "scipy", "torch")


def provenance(directory: RunDirectory, plan: Plan) -> dict[str, Any]:
    """Return code, plan and ledger as hashes."""
    return {
        "version": __version__,
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _ARITHMETIC},
        "plan_sha256": plan.sha256,
        "ledger_sha256": file_sha256(directory.ledger_path),
        "config_sha256": file_sha256(directory.config_path),
    }


def accountant_versions() -> dict[str, str]:
    """Return the versions of the libraries that accounts and checks are made with."""
    return {name: _version(name) for name in _ACCOUNTANTS}


@cache
def code_sha256() -> str:
    """Return one hash of all modules of this package: their paths and their texts."""
    root = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        text = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()


def file_sha256(path: Path) -> str | None:
    """Return the hash of a file; None if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
