"""The plan: all of a run that touches privacy, as plain data with one hash that sites approve."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dpfed_kan._validate import check_count, check_number
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.ledger import describe
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson, PoissonBatch

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class SiteSize:
    """A site of the plan.

    Args:
        name: Public.
        num_records: n_k, public, in units of privacy.
    """

    name: str
    num_records: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError("expected every site of a plan to have a name")
        check_count("num_records", self.num_records)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a site approves before it works for a run.

    Args:
        mechanism: Sampling, noise, clip norm, horizon, relation and unit, its noise calibrated.
        target_delta: δ of the study, at which the run's ε is stated and charged.
        sites: Who takes part, with public sizes.
        num_params: D, of the vectors that travel.
        model: What is trained, as plain data.
        update: The update rule, as plain data.
        columns_sha256: `columns_hash` of what every site's records are made of.
        clips_in_transform: Whether sites are asked to clip in a public transform.
        metrics_leave: Whether measurements on a site's records leave it; they are not private.
    """

    mechanism: Mechanism
    target_delta: float
    sites: tuple[SiteSize, ...]
    num_params: int
    model: Mapping[str, Any]
    update: Mapping[str, Any]
    columns_sha256: str
    clips_in_transform: bool
    metrics_leave: bool

    def __post_init__(self) -> None:
        if self.mechanism.noise.noise_multiplier is None:
            raise ValueError("a plan needs its noise_multiplier: calibrate the mechanism first")
        check_number(
            "target_delta", self.target_delta, low=0.0, high=1.0, low_open=True, high_open=True
        )
        check_count("num_params", self.num_params)
        names = [site.name for site in self.sites]
        if not names or len(set(names)) != len(names):
            raise ValueError("expected a plan to name at least one site, and each once")
        check_sha256("columns_sha256", self.columns_sha256)

    def num_records(self, site: str) -> int:
        """Return n_k of a site.

        Raises:
            ValueError: If the plan does not name it.
        """
        for known in self.sites:
            if known.name == site:
                return known.num_records
        raise ValueError(f"the plan names no site {site!r}")

    def as_plain(self) -> Any:
        """Return the plan as plain data: equal plans, however written, give equal data."""
        plain = describe(self) | {
            "sites": [describe(site) for site in sorted(self.sites, key=lambda site: site.name)]
        }
        return _plain(plain)

    @property
    def sha256(self) -> str:
        """The plan's hash: of `canonical`; any change of the plan is another hash."""
        return hashlib.sha256(canonical(self.as_plain()).encode()).hexdigest()


def check_sha256(name: str, value: object) -> None:
    """Refuse anything but 64 lower-case hexadecimal digits."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"expected {name} to be a SHA-256 hash of 64 hexadecimal digits")


def canonical(value: object) -> str:
    """Return plain data as JSON in one way: sorted keys, no spaces, whole numbers as integers."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def columns_hash(feature_names: tuple[str, ...], num_classes: int | None) -> str:
    """Return the hash of what records are made of: columns in their order, kind of label."""
    columns = {"features": list(feature_names), "num_classes": num_classes}
    return hashlib.sha256(canonical(columns).encode()).hexdigest()


def read_plan(text: str) -> Plan:
    """Return the plan that a JSON text holds, in any notation.

    Raises:
        ValueError: If it is no plan, or has a setting that this version does not know.
    """
    try:
        plan = _rebuilt(json.loads(text), "the plan")
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("the plan is not JSON; make one with `dpfed-kan plan --json`") from None
    if not isinstance(plan, Plan):
        raise ValueError("expected a plan, as `dpfed-kan plan --json` prints it")
    return plan


_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Plan,
        SiteSize,
        Mechanism,
        GaussianNoise,
        NoNoise,
        Poisson,
        PoissonBatch,
        FixedSize,
        FullBatch,
        Cyclic,
        BallsInBins,
    )
}
_KEPT_PLAIN = ("model", "update")


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isinf(value):
            return "infinity" if value > 0 else "-infinity"
        return int(value) if value.is_integer() else float(value)
    raise ValueError(f"a plan holds numbers, text and lists, not {type(value).__name__}")


def _rebuilt(value: object, where: str) -> Any:
    if isinstance(value, list):
        return tuple(_rebuilt(item, f"{where}[{place}]") for place, item in enumerate(value))
    if not isinstance(value, dict):
        return math.inf if value == "infinity" else value
    cls = _CLASSES.get(str(value.get("type")))
    if cls is None:
        raise ValueError(f"{where}: expected type to be one of {', '.join(sorted(_CLASSES))}")
    known = {field.name: field for field in fields(cls)}
    given = {name: item for name, item in value.items() if name != "type"}
    if set(given) != set(known):
        odd = ", ".join(sorted(set(given) ^ set(known)))
        raise ValueError(f"{where}: expected every setting of {cls.__name__} and no other: {odd}")
    members = {}
    for name, item in given.items():
        if known[name].type in ("bool", bool) and not isinstance(item, bool):
            raise ValueError(f"{where}.{name}: expected true or false")
        if name in _KEPT_PLAIN and not isinstance(item, dict):
            raise ValueError(f"{where}.{name}: expected a description with its type")
        members[name] = item if name in _KEPT_PLAIN else _rebuilt(item, f"{where}.{name}")
    try:
        return cls(**members)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{where}: not a {cls.__name__} ({type(error).__name__})") from None
