"""The groups of a statement that are not measured on records, from a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from dpfed_kan.assessment import Assessment, Quality
from dpfed_kan.privacy.accounting import NonPrivate, account
from dpfed_kan.privacy.accounting.sites import account_run
from dpfed_kan.privacy.joint_sampling import expected_shares, total_batch_size
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.run import Run
from dpfed_kan.statement import words
from dpfed_kan.statement.audited import audit_of
from dpfed_kan.statement.provenance import accountant_versions, provenance
from dpfed_kan.statement.tuned import tuning_of

_LARGEST_EXPONENT = 700.0
_SITES_COMPARED = 12


def statement(run: Run) -> dict[str, Any]:
    """Return the groups; infinities are left as they are."""
    mechanism = run.plan.mechanism
    unit = mechanism.privacy_unit
    private = not isinstance(run.guarantee, NonPrivate)
    return {
        "setting": {
            "in_words": words.setting_in_words(run.experiment.runtime),
            "num_sites": len(run.num_records),
            "data": type(run.experiment.data.source).__name__,
            "model": type(run.experiment.model).__name__,
            "who_sees": words.who_sees(unit, private=private),
        },
        "unit": {
            "unit": unit,
            "in_words": words.unit_in_words(mechanism),
            "neighboring_relation": mechanism.neighboring_relation,
            "relation_in_words": words.relation_in_words(mechanism),
        },
        "accesses": words.accesses(unit, private=private),
        "releases": words.releases(
            num_models=run.guarantee.num_rounds,
            num_params=run.plan.num_params,
            seeded=run.seeded,
            unit=unit,
            private=private,
        ),
        "spent": _spent(run, mechanism),
        "mechanism": _mechanism(run, mechanism),
        "accountant": _accountant(run, mechanism),
        "tuning": tuning_of(run.directory.path),
        "randomness": _randomness(run),
        "audit": audit_of(run.directory.path),
        "provenance": provenance(run.directory, run.plan) | {"limits": list(words.LIMITS)},
    }


def accuracy_differences(found: Assessment) -> list[dict[str, Any]]:
    """Return accuracy of each site less that of each other, with Newcombe's 95 % interval.

    Newcombe (1998), method 10: from the two Wilson intervals. Nothing where there are many sites.
    """
    sites = {name: q for name, q in sorted(found.per_site.items()) if q.accuracy is not None}
    if len(sites) > _SITES_COMPARED:
        return []
    return [
        {"site": a, "other": b, **_difference(sites[a], sites[b])}
        for a in sites
        for b in sites
        if a != b
    ]


def _difference(first: Quality, second: Quality) -> dict[str, Any]:
    p, q = first.accuracy, second.accuracy
    if p is None or q is None or not first.accuracy_interval or not second.accuracy_interval:
        return {}
    (p_low, p_high), (q_low, q_high) = first.accuracy_interval, second.accuracy_interval
    return {
        "difference": p - q,
        "interval": [
            p - q - math.hypot(p - p_low, q_high - q),
            p - q + math.hypot(p_high - p, q - q_low),
        ],
    }


def _spent(run: Run, mechanism: Mechanism) -> dict[str, Any]:
    shares = expected_shares(mechanism.sampling, run.num_records)
    delta = run.plan.target_delta
    whole = run.guarantee.epsilon
    if not run.finished:
        whole = account_run(mechanism, num_records=run.num_records, delta=delta).epsilon
    epsilon = run.guarantee.epsilon
    return {
        "per_site": [
            {
                "site": site,
                "epsilon": run.epsilon_per_site[site],
                "delta": delta,
                "num_units": size,
                "expected_share": shares[site],
            }
            for site, size in sorted(run.num_records.items())
        ],
        "delta": delta,
        "odds_factor": math.exp(epsilon) if epsilon < _LARGEST_EXPONENT else math.inf,
        "epsilon_of_the_whole_plan": whole,
        "to_date": None,
    }


def _mechanism(run: Run, mechanism: Mechanism) -> dict[str, Any]:
    noise = mechanism.noise
    return {
        "sampling": mechanism.sampling.describe(),
        "expected_batch_size": total_batch_size(mechanism.sampling, list(run.num_records.values())),
        "l2_clip_norm": mechanism.l2_clip_norm,
        "sensitivity_factor": mechanism.sensitivity_factor,
        "noise": noise.describe(),
        "noise_multiplier": mechanism.noise_multiplier,
        "correlation": noise.correlation,
        "column_normalized": noise.column_normalized,
        "num_rounds": run.guarantee.num_rounds,
        "planned_rounds": mechanism.num_rounds,
        "num_params": run.plan.num_params,
        "update_rule": type(run.experiment.update).__name__,
        "clips_in_transform": run.plan.clips_in_transform,
        "precision": run.experiment.precision,
        "sites_per_unit": mechanism.sites_per_unit,
    }


def _accountant(run: Run, mechanism: Mechanism) -> dict[str, Any]:
    guarantee = run.guarantee
    if isinstance(guarantee, NonPrivate):
        return {"method": None, "reason": guarantee.reason, "versions": accountant_versions()}
    return {
        "method": guarantee.best.method,
        "assumption": guarantee.best.assumption,
        "check": guarantee.check,
        "versions": accountant_versions(),
        "compared": [asdict(figure) for figure in guarantee.compared],
        "without_amplification": _without_amplification(run, mechanism),
    }


def _without_amplification(run: Run, mechanism: Mechanism) -> dict[str, Any]:
    """Return ε of the same noise and rounds if every record had joined every round."""
    found = account(
        replace(mechanism, sampling=FullBatch()),
        delta=run.plan.target_delta,
        num_rounds=run.guarantee.num_rounds,
    )
    return {
        "epsilon": found.epsilon,
        "method": "full batch: " + ("" if isinstance(found, NonPrivate) else found.best.method),
        "note": "an upper bound that holds also if anybody knows which records joined which round",
    }


def _randomness(run: Run) -> dict[str, Any]:
    if run.seeded:
        return {
            "seeded": True,
            "seed": run.experiment.seed,
            "note": "batches and noise come from a seed: a declared simulation. Anybody who knows "
            "the seed can take the noise off, so that the released models of this run protect "
            "nobody; ε is what the same run would give with fresh noise",
        }
    return {
        "seeded": False,
        "seed": None,
        "note": "batches and noise come from AES-128 in counter mode, keyed by the operating "
        "system's entropy; the key is in the file named key in the run's directory",
    }


def plain(value: Any) -> Any:
    """Return plain data with infinity in words, so that JSON can hold it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return value
