import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

from dpfed_kan.privacy.accounting.balls_in_bins import (
    BinsEpsilon,
    balls_in_bins_epsilon,
    bin_gram,
    deterministic_bins_epsilon,
)
from dpfed_kan.privacy.accounting.bin_monte_carlo import shown_epsilons
from dpfed_kan.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sensitivity import cyclic_sensitivity, strategy_matrix

ORACLES = Path(__file__).parents[3].parent / "shared" / "oracles" / "accounts.json"


def oracle(key):
    if not ORACLES.exists():
        pytest.skip("the shared oracles are not beside this checkout")
    return json.loads(ORACLES.read_text(encoding="utf-8"))[key]


def settings(kappa, correlation, num_bins, num_rounds, *, normalized=False, **more):
    noise = GaussianNoise(
        noise_multiplier=kappa, correlation=correlation, column_normalized=normalized
    )
    plan = {"noise": noise, "num_bins": num_bins, "num_rounds": num_rounds}
    return plan | {"horizon": num_rounds, "delta": 1e-5} | more


def monte_carlo(seed=0, num_samples=200_000, **given) -> BinsEpsilon:
    rng = np.random.default_rng(seed)
    return balls_in_bins_epsilon(rng=rng, num_samples=num_samples, **given)


def bin_means(given) -> np.ndarray:
    """Return m_i / κ, shape (b, T), from the explicit strategy matrix."""
    noise, num_bins, num_rounds = given["noise"], given["num_bins"], given["num_rounds"]
    matrix = strategy_matrix(noise, num_rounds=num_rounds, horizon=given["horizon"])
    means = [matrix[:, start::num_bins].sum(axis=1) for start in range(num_bins)]
    return np.array(means) / noise.noise_multiplier


class Plane:
    """Two bins: their two means span a plane, over which δ is integrated on a grid."""

    def __init__(self, given, *, replace_one=False):
        triangle = np.linalg.qr(bin_means(given).T, mode="r")  # columns: the means in the plane
        reach = 8.0 + np.abs(triangle).max()
        axis = np.linspace(-reach, reach, 1001)
        x, y = np.meshgrid(axis, axis)
        self.base = np.exp(-(x**2 + y**2) / 2) * (axis[1] - axis[0]) ** 2 / (2 * np.pi)
        shifts = triangle.T if len(triangle) == 2 else np.append(triangle.T, [[0], [0]], axis=1)
        self.ratio = sum(np.exp(u * x + v * y - (u**2 + v**2) / 2) for u, v in shifts) / 2
        self.other = np.ones_like(x)
        if replace_one:  # the successor's gradients point the other way
            self.other = self.ratio[::-1, ::-1]

    def deltas(self, epsilon):
        remove = self.base * np.maximum(self.ratio - np.exp(epsilon) * self.other, 0)
        add = self.base * np.maximum(self.other - np.exp(epsilon) * self.ratio, 0)
        return remove.sum(), add.sum()

    def keeps(self, epsilon, delta, direction=None):
        """Return whether δ(ε) ≤ δ, up to the grid's error."""
        found = self.deltas(epsilon)
        return (max(found) if direction is None else found[direction]) <= delta * (1 + 1e-3)


TWO_BINS = [
    settings(1.5, 0.0, 2, 4, delta=1e-2),
    settings(1.5, 0.5, 2, 2, delta=1e-4),
    settings(1.5, 0.9, 2, 3, delta=1e-2),
    settings(3.0, 0.7, 2, 5, delta=1e-5),
    settings(3.0, 0.7, 2, 5, normalized=True, delta=1e-4),
    settings(2.0, 0.5, 2, 3, horizon=8, normalized=True, delta=1e-3),
    settings(1.0, 0.5, 2, 1, horizon=4, delta=1e-3),
]


@pytest.mark.parametrize("given", TWO_BINS, ids=str)
def test_no_bound_is_below_numerical_integration_for_two_bins(given):
    plane, delta = Plane(given), given["delta"]
    deterministic, shown = deterministic_bins_epsilon(**given), monte_carlo(**given)
    assert plane.keeps(deterministic.epsilon, delta)
    assert not plane.keeps((deterministic.epsilon - 0.01) / 1.35, delta)
    for direction, epsilon in enumerate([shown.remove_epsilon, shown.add_epsilon]):
        assert plane.keeps(epsilon, delta, direction)
        assert not plane.keeps((epsilon - 0.01) / 1.06, delta, direction)


@pytest.mark.parametrize(("kappa", "delta"), [(0.7, 1e-4), (1.0, 1e-3), (6.3, 1e-5)])
def test_one_round_has_a_closed_form(kappa, delta):
    """E[((e^a + 1)/2 − e^ε)_+] = δ_Gauss(log(2 e^ε − 1))/2: half the records have not joined."""
    epsilon = deterministic_bins_epsilon(**settings(kappa, 0.0, 2, 1, delta=delta)).epsilon
    exact = gaussian_delta(epsilon=np.log(2 * np.exp(epsilon) - 1), mu=1 / kappa) / 2
    assert 0.999 * delta <= exact <= delta


@pytest.mark.parametrize("kappa", [0.7, 1.5, 6.3])
@pytest.mark.parametrize("num_rounds", [1, 4, 5])
def test_the_deterministic_bound_is_exact_for_independent_noise(kappa, num_rounds):
    given = settings(kappa, 0.0, 2, num_rounds, delta=1e-4)
    plane, found = Plane(given), deterministic_bins_epsilon(**given)
    assert plane.keeps(found.epsilon, 1e-4)
    assert not plane.keeps(found.epsilon / 1.006 - 2e-4, 1e-4)


@pytest.mark.parametrize("given", TWO_BINS[:4], ids=str)
def test_replace_one_covers_two_opposite_records(given):
    pair = Plane(given, replace_one=True)
    deterministic = deterministic_bins_epsilon(sensitivity_factor=2, **given).epsilon
    shown = monte_carlo(sensitivity_factor=2, **given).epsilon
    for epsilon in (deterministic, shown):
        assert max(pair.deltas(epsilon)) <= given["delta"] * (1 + 1e-3)
    zero_out = deterministic_bins_epsilon(**given).epsilon
    assert max(pair.deltas(zero_out)) > given["delta"]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("num_rounds", "horizon"), [(20, 20), (13, 20), (3, 20), (23, 30)])
def test_the_gram_matrix_is_that_of_the_strategy_matrix(normalized, num_rounds, horizon):
    given = settings(2.0, 0.5, 5, num_rounds, horizon=horizon, normalized=normalized)
    means = bin_means(given) * 2.0
    gram = bin_gram(given["noise"], num_bins=5, num_rounds=num_rounds, horizon=horizon)
    np.testing.assert_allclose(gram, means @ means.T, rtol=1e-12, atol=1e-12)
    if num_rounds == 20:
        assert gram[0, 4] > gram[0, 2] > 0  # neighbours across epochs


def direct_estimate(given, epsilon, num_samples=400_000):
    """Return mean and standard error of δ_remove(ε), drawn in R^T and not through G."""
    rng, means = np.random.default_rng(8), bin_means(given)
    chosen = rng.integers(len(means), size=num_samples)
    releases = means[chosen] + rng.standard_normal((num_samples, means.shape[1]))
    exponents = releases @ means.T - (means**2).sum(axis=1) / 2
    losses = logsumexp(exponents, axis=1) - np.log(len(means))
    parts = -np.expm1(np.minimum(epsilon - losses, 0.0))
    return parts.mean(), parts.std() / np.sqrt(num_samples)


def test_dropping_the_corner_of_the_gram_matrix_understates_and_is_caught():
    given = settings(2.0, 0.6, 5, 20, delta=1e-2)
    gram = bin_gram(given["noise"], num_bins=5, num_rounds=20, horizon=20) / 2.0**2
    dropped = gram.copy()
    dropped[0, 4] = dropped[4, 0] = 0.0
    right, wrong = (
        max(
            shown_epsilons(
                matrix,
                delta=1e-2,
                failure_probability=1e-5,
                num_samples=400_000,
                guess=1.0,
                rng=np.random.default_rng(0),
            )
        )
        for matrix in (gram, dropped)
    )
    mean, error = direct_estimate(given, right)
    assert mean - 4 * error < 1e-2
    mean, error = direct_estimate(given, wrong)
    assert mean - 4 * error > 1e-2


def oracle_rows():
    if not ORACLES.exists():
        return []
    rows = json.loads(ORACLES.read_text(encoding="utf-8"))["balls_in_bins_mc"]
    return [pytest.param(r, id=f"{r['norm']}-{r['lam']}-{r['kappa']}") for r in rows]


def compare_with_oracle(row, num_samples, excess):
    given = settings(row["kappa"], row["lam"], 40, 400, normalized=row["norm"])
    deterministic = deterministic_bins_epsilon(**given)
    shown = monte_carlo(num_samples=num_samples, **given)
    for found in (deterministic, shown):
        assert found.remove_epsilon >= 2 * row["rem"] - row["rem_3se"]
        assert found.add_epsilon >= 2 * row["add"] - row["add_3se"]
        assert found.epsilon == max(found.remove_epsilon, found.add_epsilon)
    assert deterministic.epsilon <= row["cyclic"]
    assert deterministic.failure_probability == 0 < shown.failure_probability < 1e-5
    assert min(deterministic.epsilon, shown.epsilon) <= row["rem_3se"] * excess
    if row["lam"] == 0:
        assert deterministic.epsilon <= row["rem_3se"]


@pytest.mark.parametrize("row", oracle_rows()[4:24:4])
def test_bounds_lie_above_the_independent_estimate_and_near_it(row):
    compare_with_oracle(row, 300_000, 1.15)


@pytest.mark.slow
@pytest.mark.parametrize("row", oracle_rows())
def test_bounds_lie_within_five_percent_of_the_independent_estimate(row):
    compare_with_oracle(row, 2_000_000, 1.05)


@pytest.mark.slow
def test_tilted_draws_give_a_sharper_bound_than_plain_ones():
    for row in oracle("balls_in_bins_opake")[::2]:
        given = settings(row["kappa"], row["lam"], 40, 400, normalized=row["normalized"])
        assert monte_carlo(num_samples=2_000_000, **given).epsilon < row["eps"]


def test_one_bin_is_the_full_batch_and_one_epoch_at_large_noise_costs_nothing():
    given = settings(6.3, 0.5, 1, 30)
    norm = np.linalg.norm(bin_means(given))
    exact = gaussian_epsilon(delta=1e-5, mu=float(norm))
    assert deterministic_bins_epsilon(**given).epsilon == pytest.approx(exact)
    assert exact <= monte_carlo(**given).epsilon <= 1.02 * exact
    assert deterministic_bins_epsilon(**settings(1e6, 0.5, 4, 8)).epsilon == 0
    assert monte_carlo(**settings(1e6, 0.5, 4, 8)).epsilon == 0


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_bounds_fall_with_noise_and_grow_with_rounds_and_never_pass_the_worst_slot(correlation):
    def deterministic(kappa, num_rounds):
        given = settings(kappa, correlation, 6, num_rounds, horizon=24)
        return deterministic_bins_epsilon(**given).epsilon

    values = [deterministic(kappa, 24) for kappa in (1.0, 2.0, 8.0)]
    assert values == sorted(values, reverse=True)
    values = [deterministic(2.0, num_rounds) for num_rounds in (1, 6, 11)]
    assert values == sorted(values)
    sensitivity = cyclic_sensitivity(
        GaussianNoise(noise_multiplier=1.0, correlation=correlation),
        num_batches=6,
        num_rounds=24,
        horizon=24,
    )
    worst_slot = gaussian_epsilon(delta=1e-5, mu=sensitivity / 2.0)
    assert deterministic(2.0, 24) <= worst_slot


def test_little_noise_gives_a_large_epsilon_and_no_warning():
    for factor in (1, 2):
        given = settings(0.05, 0.5, 4, 8, sensitivity_factor=factor)
        assert deterministic_bins_epsilon(**given).epsilon > 500
        assert monte_carlo(num_samples=2000, **given).epsilon > 500


def test_the_result_is_a_function_of_the_random_state():
    given = settings(2.0, 0.5, 3, 6)
    first, again, other = (monte_carlo(seed, 5000, **given) for seed in (1, 1, 2))
    assert first == again
    assert first.epsilon != other.epsilon


def test_settings_out_of_range_are_refused_by_name():
    good = settings(2.0, 0.5, 3, 6)
    for wrong, name in [
        ({"noise": GaussianNoise(noise_multiplier=0.0)}, "noise_multiplier"),
        ({"noise": GaussianNoise()}, "noise_multiplier"),
        ({"num_bins": 0}, "num_bins"),
        ({"num_rounds": 7}, "horizon"),
        ({"delta": 0.0}, "delta"),
        ({"sensitivity_factor": 3}, "sensitivity_factor"),
    ]:
        with pytest.raises(ValueError, match=name):
            deterministic_bins_epsilon(**(good | wrong))
        with pytest.raises(ValueError, match=name):
            monte_carlo(**(good | wrong))
    for beta in (0.0, 1e-5):
        with pytest.raises(ValueError, match="failure_probability"):
            monte_carlo(failure_probability=beta, **good)
