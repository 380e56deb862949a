"""What every bound must do, whichever method it is."""

import importlib
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from dpfed_kan.privacy.accounting import Bound, NonPrivate, account
from dpfed_kan.privacy.accounting.bounds import valid_bounds
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize
from dpfed_kan.privacy.mechanism import NEIGHBORING_RELATIONS, Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson

NUM_RECORDS = 400
DELTA = 1e-5
SAMPLERS = {
    "poisson": Poisson(sampling_prob=0.05),
    "fixed_size": FixedSize(batch_size=20),
    "balls_in_bins": BallsInBins(num_bins=4),
    "cyclic": Cyclic(num_batches=20),
    "full_batch": FullBatch(),
}
METHODS = {
    "poisson": ("one Gaussian", "spectral", "block", "norm mixture", "revealed"),
    "fixed_size": ("one Gaussian", "PLD", "revealed"),
    "balls_in_bins": ("balls in bins",),
    "cyclic": ("one Gaussian",),
    "full_batch": ("one Gaussian",),
}


def mechanism(sampling, kappa=3.0, correlation=0.6, rounds=20, relation="zero_out", scaled=False):
    return Mechanism(
        sampling=sampling,
        noise=GaussianNoise(
            noise_multiplier=kappa, correlation=correlation, column_normalized=scaled
        ),
        l2_clip_norm=1.0,
        num_rounds=rounds,
        neighboring_relation=relation,
    )


def epsilons(subject: Mechanism, rounds: int | None = None, delta: float = DELTA):
    """Method name, without its details, to ε of every bound that is valid for the mechanism."""
    found, known = {}, math.inf
    rounds = subject.num_rounds if rounds is None else rounds
    for bound in valid_bounds(subject, rounds, delta, num_records=NUM_RECORDS):
        epsilon, method = bound.compute(known)
        known = min(known, epsilon)
        found[next(word for word in ORDER if method.startswith(word))] = epsilon
    return found


ORDER = (
    "one Gaussian",
    "spectral",
    "block",
    "norm mixture",
    "revealed",
    "PLD",
    "balls in bins",
    "nothing",
)


def cases() -> Iterator[tuple[str, str]]:
    for sampler in SAMPLERS:
        for relation in NEIGHBORING_RELATIONS:
            if (sampler, relation) != ("cyclic", "add_remove"):  # refused: there is no account
                yield sampler, relation


every_case = pytest.mark.parametrize(("sampler", "relation"), list(cases()))


@every_case
def test_every_promised_bound_is_computed_and_finite(sampler, relation):
    found = epsilons(mechanism(SAMPLERS[sampler], relation=relation))
    assert tuple(found) == METHODS[sampler]
    assert all(0 < epsilon < math.inf for epsilon in found.values())


@every_case
def test_nothing_happened_costs_nothing(sampler, relation):
    subject = mechanism(SAMPLERS[sampler], relation=relation)
    guarantee = account(subject, delta=DELTA, num_rounds=0, num_records=NUM_RECORDS)
    assert guarantee.epsilon == 0


@every_case
def test_without_noise_there_is_no_privacy(sampler, relation):
    for noise in (NoNoise(), GaussianNoise(noise_multiplier=0.0, correlation=0.5)):
        subject = Mechanism(
            sampling=SAMPLERS[sampler],
            noise=noise,
            l2_clip_norm=1.0,
            num_rounds=4,
            neighboring_relation=relation,
        )
        guarantee = account(subject, delta=DELTA, num_records=NUM_RECORDS)
        assert isinstance(guarantee, NonPrivate)
        assert guarantee.epsilon == math.inf
        assert "NO PRIVACY" in guarantee.sentence


@every_case
def test_the_answer_is_the_least_bound_and_is_one_of_them(sampler, relation):
    guarantee = account(
        mechanism(SAMPLERS[sampler], relation=relation), delta=DELTA, num_records=NUM_RECORDS
    )
    assert guarantee.epsilon == min(bound.epsilon for bound in guarantee.tried)
    assert guarantee.best in guarantee.tried
    assert all(bound.assumption and bound.method for bound in guarantee.tried)
    assert not set(guarantee.compared) & set(guarantee.tried)


@every_case
def test_more_noise_never_costs_more(sampler, relation):
    found = [
        epsilons(mechanism(SAMPLERS[sampler], kappa, relation=relation))
        for kappa in (1.5, 2.0, 4.0, 10.0)
    ]
    assert_falling(found)


@every_case
def test_more_rounds_never_cost_less(sampler, relation):
    found = [
        epsilons(mechanism(SAMPLERS[sampler], rounds=rounds, relation=relation))
        for rounds in (24, 11, 3, 1)
    ]
    assert_falling(found)


@every_case
def test_more_correlation_at_one_multiplier_never_costs_less(sampler, relation):
    found = [
        epsilons(mechanism(SAMPLERS[sampler], correlation=correlation, relation=relation))
        for correlation in (0.9, 0.75, 0.5, 0.2)
    ]
    assert_falling(found)


@pytest.mark.parametrize("relation", NEIGHBORING_RELATIONS)
def test_a_higher_inclusion_probability_never_costs_less(relation):
    probs = (0.4, 0.2, 0.1, 0.05)
    poisson = [Poisson(sampling_prob=q) for q in probs]
    fixed = [FixedSize(batch_size=int(q * NUM_RECORDS)) for q in probs]
    for samplings in (poisson, fixed):
        assert_falling([epsilons(mechanism(s, relation=relation)) for s in samplings])


@every_case
def test_a_larger_delta_never_costs_more(sampler, relation):
    subject = mechanism(SAMPLERS[sampler], relation=relation)
    assert_falling([epsilons(subject, delta=delta) for delta in (1e-8, 1e-6, 1e-4)])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_replacing_counts_two_clip_norms_in_every_bound(sampler):
    zeroed = epsilons(mechanism(SAMPLERS[sampler], kappa=10.0))
    replaced = epsilons(mechanism(SAMPLERS[sampler], kappa=10.0, relation="replace_one"))
    for method, epsilon in zeroed.items():
        # fixed-size batches move two clip norms in any case: another record takes the place
        already = sampler == "fixed_size" and method == "PLD"
        assert replaced[method] >= epsilon * (1.0 if already else 1.7)


@every_case
def test_scaled_rows_are_accounted_for_too(sampler, relation):
    subject = mechanism(SAMPLERS[sampler], relation=relation, scaled=True)
    found = epsilons(subject)
    assert all(0 < epsilon < math.inf for epsilon in found.values())
    # scaled rows carry at least the plain noise, so each bound is no larger, up to its grid
    plain = epsilons(mechanism(SAMPLERS[sampler], relation=relation))
    for method, epsilon in found.items():
        assert epsilon <= plain[method] * 1.02


@every_case
def test_quick_is_valid_and_no_smaller(sampler, relation):
    subject = mechanism(SAMPLERS[sampler], correlation=0.9, relation=relation)
    full = account(subject, delta=DELTA, num_records=NUM_RECORDS)
    quick = account(subject, delta=DELTA, num_records=NUM_RECORDS, quick=True)
    assert quick.epsilon >= full.epsilon


def test_unknown_mechanisms_and_samplers_are_refused():
    class Shuffle:
        def describe(self) -> str:
            return "shuffled"

    with pytest.raises(TypeError, match="no account for Shuffle sampling"):
        account(mechanism(Shuffle()), delta=DELTA)
    with pytest.raises(TypeError, match="no account for str"):
        account("poisson", delta=DELTA)


def test_fixed_size_without_the_number_of_records_is_refused():
    with pytest.raises(ValueError, match="give num_records"):
        account(mechanism(SAMPLERS["fixed_size"]), delta=DELTA)
    with pytest.raises(ValueError, match="num_records=10"):
        account(mechanism(SAMPLERS["fixed_size"]), delta=DELTA, num_records=10)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_an_impossible_delta_is_refused(delta):
    with pytest.raises(ValueError, match="delta="):
        account(mechanism(SAMPLERS["poisson"]), delta=delta)


def test_a_delta_of_one_over_n_is_refused_and_n_is_named():
    with pytest.raises(ValueError, match=r"delta=0\.1 .*num_records=20"):
        account(mechanism(SAMPLERS["poisson"]), delta=0.1, num_records=20)


def test_epsilon_is_never_negative():
    subject = mechanism(Poisson(sampling_prob=0.05), kappa=4.0, correlation=0.0, rounds=10)
    assert account(subject, delta=0.3).epsilon == 0


def test_more_rounds_than_planned_are_refused():
    with pytest.raises(ValueError, match="horizon"):
        account(mechanism(SAMPLERS["poisson"]), delta=DELTA, num_rounds=21)


def test_the_theorem_is_shown_beside_the_bounds_and_never_the_answer(monkeypatch):
    subject = mechanism(SAMPLERS["poisson"])
    guarantee = account(subject, delta=DELTA)
    assert len(guarantee.compared) == 2
    assert all("comparison only" in figure.method for figure in guarantee.compared)
    figure = Bound(epsilon=0.0, method="comparison only", assumption="none", seconds=0.0)
    module = importlib.import_module("dpfed_kan.privacy.accounting.account")
    monkeypatch.setattr(module, "theorem_e1_figures", lambda *_: (figure,))
    again = account(subject, delta=DELTA)
    assert again.compared == (figure,)
    assert again.epsilon == guarantee.epsilon


def test_numpy_numbers_are_numbers():
    subject = Mechanism(
        sampling=Poisson(sampling_prob=np.float64(0.05)),
        noise=GaussianNoise(noise_multiplier=np.float64(3.0), correlation=np.float64(0.6)),
        l2_clip_norm=np.float64(1.0),
        num_rounds=np.int64(20),
    )
    plain = account(mechanism(SAMPLERS["poisson"]), delta=DELTA, num_rounds=15)
    numpy = account(subject, delta=np.float64(DELTA), num_rounds=np.int64(15), cross_check=True)
    assert numpy.epsilon == pytest.approx(plain.epsilon, rel=1e-3)  # another horizon, another grid


def assert_falling(found: list[dict[str, float]]) -> None:
    for larger, smaller in itertools.pairwise(found):
        for method, epsilon in smaller.items():
            assert larger[method] >= epsilon * (1 - 1e-3) - 1e-9, method
