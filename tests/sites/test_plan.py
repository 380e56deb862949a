import json
from dataclasses import replace
from typing import Any

import pytest

from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson, PoissonBatch
from dpfed_kan.sites.plan import Plan, SiteSize, canonical, read_plan
from tests.sites.sitekit import mechanism, plan

BASE = plan(0.5)


def of(**settings: Any) -> Plan:
    return replace(BASE, mechanism=replace(BASE.mechanism, **settings))


CHANGED = {
    "sampling": of(sampling=Poisson(sampling_prob=0.21)),
    "noise_multiplier": of(noise=GaussianNoise(noise_multiplier=99.0)),
    "correlation": of(noise=replace(BASE.mechanism.noise, correlation=0.5)),  # type: ignore[type-var]
    "l2_clip_norm": of(l2_clip_norm=1.5),
    "num_rounds": of(num_rounds=9),
    "relation": of(neighboring_relation="replace_one"),
    "unit": of(privacy_unit="patient"),
    "sites_per_unit": of(sites_per_unit=2),
    "delta": replace(BASE, target_delta=2e-6),
    "a size": replace(BASE, sites=(SiteSize(name="a", num_records=41), BASE.sites[1])),
    "a name": replace(BASE, sites=(SiteSize(name="A", num_records=40), BASE.sites[1])),
    "num_params": replace(BASE, num_params=4),
    "model": replace(BASE, model={"type": "Other"}),
    "update": replace(BASE, update={**BASE.update, "learning_rate": 0.2}),
    "columns": replace(BASE, columns_sha256="0" * 64),
    "transform": replace(BASE, clips_in_transform=True),
    "metrics": replace(BASE, metrics_leave=True),
}


def test_a_changed_plan_is_a_new_hash() -> None:
    hashes = {name: changed.sha256 for name, changed in CHANGED.items()}
    assert len({*hashes.values(), BASE.sha256}) == len(CHANGED) + 1


def test_neither_order_nor_notation_changes_the_hash() -> None:
    text = json.dumps(BASE.as_plain())
    other = json.dumps(dict(reversed(list(json.loads(text).items()))), indent=4)
    other = other.replace('"target_delta": 1e-06', '"target_delta": 0.000001')
    other = other.replace('"num_rounds": 8', '"num_rounds": 8.0e0')
    assert "0.000001" in other
    assert "8.0e0" in other
    assert read_plan(other.replace("8.0e0", "8")).sha256 == BASE.sha256
    assert canonical(json.loads(other)) == canonical(json.loads(text))
    assert replace(BASE, sites=BASE.sites[::-1]).sha256 == BASE.sha256
    assert of(l2_clip_norm=1).sha256 == of(l2_clip_norm=1.0).sha256


@pytest.mark.parametrize(
    "sampling",
    [
        Poisson(sampling_prob=0.1),
        PoissonBatch(site_batch_size=4),
        FixedSize(batch_size=4),
        FullBatch(),
        Cyclic(num_batches=4),
        BallsInBins(num_bins=4),
    ],
)
def test_a_plan_read_back_is_the_plan(sampling: Any) -> None:
    planned = of(sampling=sampling)
    again = read_plan(json.dumps(planned.as_plain()))
    assert again.mechanism == planned.mechanism
    assert again.sha256 == planned.sha256


def test_a_plan_without_noise_is_a_plan_too() -> None:
    planned = of(noise=NoNoise(), l2_clip_norm=float("inf"))
    again = read_plan(json.dumps(planned.as_plain()))
    assert again.mechanism == planned.mechanism
    assert again.sha256 == planned.sha256


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda p: p | {"extra": 1}, "extra"),
        (lambda p: {k: v for k, v in p.items() if k != "metrics_leave"}, "metrics_leave"),
        (lambda p: p | {"metrics_leave": "no"}, "true or false"),
        (lambda p: p | {"sites": []}, "at least one site"),
        (lambda p: p | {"sites": p["sites"] + p["sites"]}, "each once"),
        (lambda p: p | {"target_delta": 0}, "target_delta=0"),
        (lambda p: p | {"columns_sha256": "x"}, "64 hexadecimal"),
        (lambda p: p | {"mechanism": p["mechanism"] | {"type": "Mechanist"}}, "type to be one"),
        (lambda p: p | {"mechanism": p["mechanism"] | {"num_rounds": 0}}, "num_rounds=0"),
        (lambda p: p | {"mechanism": 3}, "not a Plan"),
        (lambda p: [p], "expected a plan"),
    ],
)
def test_what_is_no_plan_is_refused_in_words(edit: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_plan(json.dumps(edit(BASE.as_plain())))
    with pytest.raises(ValueError, match="not JSON"):
        read_plan("{")


def test_a_plan_needs_its_noise() -> None:
    bare = Mechanism(
        sampling=FullBatch(),
        noise=GaussianNoise(noise_multiplier=None),
        l2_clip_norm=1.0,
        num_rounds=1,
    )
    with pytest.raises(ValueError, match="calibrate the mechanism"):
        replace(BASE, mechanism=bare)
    assert mechanism(0.5) is mechanism(0.5)
