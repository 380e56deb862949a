"""One-time tokens: a site proves by its token who it is, and binds it to one session."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Iterable

_HEX = re.compile(r"[0-9a-f]{64}")


class Tokens:
    """The tokens of one run; only their digests are kept.

    Guarantees:
        A token names one site of one run. The first session that shows it owns it; any other is
        refused, so that a copy is worthless once used, and the owner may reconnect. All
        comparisons take the same time whatever is shown.

    Args:
        run_id: Of the run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._digests: dict[str, bytes] = {}
        self._sessions: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def issue(self, sites: Iterable[str]) -> dict[str, str]:
        """Return a fresh token for each site; its earlier token and session are void."""
        issued = {site: secrets.token_hex(32) for site in sites}
        with self._lock:
            for site, token in issued.items():
                self._digests[site] = self._digest(token)
                self._sessions.pop(site, None)
        return issued

    def admit(self, token: str, session: str) -> tuple[str | None, str]:
        """Return (the site that may enter, "") or (None, why not).

        Args:
            token: What is shown, hexadecimal.
            session: A secret that the caller has drawn, the same when it reconnects.
        """
        if not _HEX.fullmatch(token) or not _HEX.fullmatch(session):
            return None, "no token"
        shown, owner = self._digest(token), self._digest(session)
        with self._lock:
            found = None
            for site, digest in self._digests.items():
                if hmac.compare_digest(shown, digest):
                    found = site
            if found is None:
                return None, "a wrong token"
            if not hmac.compare_digest(owner, self._sessions.setdefault(found, owner)):
                return None, f"a replayed token of {found}"
        return found, ""

    def _digest(self, secret: str) -> bytes:
        return hashlib.sha256(f"{self._run_id}/{secret}".encode()).digest()
