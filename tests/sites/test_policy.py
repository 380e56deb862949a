from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed_kan.config import ConfigError
from dpfed_kan.policy_file import load_policy
from dpfed_kan.privacy.clipping import GradientBlock, clip_and_sum
from dpfed_kan.privacy.joint_sampling import FixedSize
from dpfed_kan.privacy.sampling import FullBatch, Poisson, PoissonBatch
from dpfed_kan.sites.policy import PlanRefused, sampling_share, unit_covers
from tests.sites.sitekit import plan, policy

BASE = plan(0.5)
TEXT = """
budget_epsilon: 1.0
budget_delta: 1e-5
min_records: 20
allowed_plans: any
privacy_unit: record
max_sampling_prob: 0.5
metrics_may_leave: false
"""


@pytest.mark.parametrize(
    ("asked", "allowed", "rule", "words"),
    [
        ({}, {"allowed_plans": ("0" * 64,)}, "allowed_plans", BASE.sha256),
        ({}, {"allowed_plans": ()}, "allowed_plans", "0 other plans"),
        ({}, {"min_records": 41}, "min_records", "40 records"),
        ({}, {"privacy_unit": "patient"}, "privacy_unit", "one record"),
        ({}, {"neighboring_relation": "replace_one"}, "neighboring_relation", "zero_out"),
        ({}, {"max_sampling_prob": 0.19}, "max_sampling_prob", "0.2 of its records"),
        ({"metrics_leave": True}, {}, "metrics_may_leave", "measurements"),
    ],
)
def test_a_refusal_names_the_rule_what_is_asked_and_what_is_allowed(
    asked: dict[str, Any], allowed: dict[str, Any], rule: str, words: str
) -> None:
    policy().check(BASE, site="a")
    policy(allowed_plans=(BASE.sha256,)).check(BASE, site="a")
    with pytest.raises(PlanRefused) as no:
        policy(**allowed).check(replace(BASE, **asked), site="a")
    assert no.value.rule == rule
    assert words in str(no.value)
    assert no.value.asked in str(no.value)
    assert no.value.allowed in str(no.value)


def test_a_budget_for_records_that_are_added_or_removed_is_refused() -> None:
    with pytest.raises(ValueError, match="publishes the sites' sizes and divides by them"):
        policy(neighboring_relation="add_remove")


@pytest.mark.parametrize(
    ("unit", "relation", "wanted", "covered"),
    [
        ("record", "zero_out", "record", True),
        ("patient", "zero_out", "patient", True),
        ("record", "replace_one", "patient", False),
        ("patient", "replace_one", "record", True),
        ("patient", "zero_out", "record", False),  # less a record: clip(a + b) becomes clip(b)
    ],
)
def test_a_unit_covers_another_only_where_its_neighbours_do(
    unit: Any, relation: Any, wanted: Any, covered: bool
) -> None:
    asked = replace(BASE.mechanism, privacy_unit=unit, neighboring_relation=relation)
    assert unit_covers(asked, wanted) is covered


def test_zeroing_out_one_of_a_patients_records_can_move_the_sum_by_twice_the_clip() -> None:
    gradients, one = np.array([[3.0], [-1.0]]), np.array([[1.0], [1.0]])
    whose = np.zeros(2, dtype=np.intp)
    both = clip_and_sum(
        [GradientBlock(left=gradients, right=one)], l2_clip_norm=1.0, groups=whose
    ).value
    less = clip_and_sum(
        [GradientBlock(left=gradients[1:], right=one[1:])], l2_clip_norm=1.0, groups=whose[1:]
    ).value
    assert abs(both - less).max() == pytest.approx(2.0, abs=1e-6)


def test_a_plan_without_this_site_is_refused() -> None:
    with pytest.raises(PlanRefused, match="without the site 'c'"):
        policy().check(BASE, site="c")


def test_an_approved_plan_is_approved_in_no_other_form() -> None:
    approves = policy(allowed_plans=(BASE.sha256,))
    changed = replace(BASE, mechanism=replace(BASE.mechanism, num_rounds=9))
    with pytest.raises(PlanRefused, match="allowed_plans"):
        approves.check(changed, site="a")


def test_the_share_of_a_round_is_this_sites_own() -> None:
    def share(sampling: Any) -> float:
        met = replace(BASE, mechanism=replace(BASE.mechanism, sampling=sampling))
        return sampling_share(met, site="a")

    assert share(Poisson(sampling_prob=0.3)) == pytest.approx(0.3)
    assert share(PoissonBatch(site_batch_size=10)) == pytest.approx(0.25)
    assert share(FixedSize(batch_size=9)) == pytest.approx(0.1)  # of 40 + 50
    assert share(FullBatch()) == 1.0


def test_a_policy_is_read_from_the_sites_disk(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(TEXT)
    assert load_policy(path) == policy(max_sampling_prob=0.5)
    path.write_text(TEXT.replace("any", f"[{BASE.sha256}]"))
    assert load_policy(path).allowed_plans == (BASE.sha256,)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("budget_epsilon", "budget_epsilom", "did you mean budget_epsilon"),
        ("allowed_plans: any\n", "", "allowed_plans: a value is required"),
        ("allowed_plans: any", "allowed_plans: [abc]", "64 hexadecimal"),
        ("allowed_plans: any", "allowed_plans: all", "allowed_plans: expected a list of text"),
        ("budget_epsilon: 1.0", "budget_epsilon: 0", "budget_epsilon=0"),
        ("metrics_may_leave: false", "metrics_may_leave: 0", "true or false"),
        ("privacy_unit: record", "privacy_unit: patients", "privacy_unit"),
    ],
)
def test_a_policy_that_says_something_else_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ConfigError, match=said):
        load_policy(path)


def test_no_policy_is_no_permission(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    for name, said in (("nowhere.yaml", "cannot be read"), ("empty.yaml", "holds no rules")):
        with pytest.raises(ValueError, match=said):
            load_policy(tmp_path / name)
