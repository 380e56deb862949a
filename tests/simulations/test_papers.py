"""Small versions of published results, and the margins against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.svm import SVC

from dpfed_kan.data.geometry import MultiInterval
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.streams import Streams
from simulations.correlated_noise import fixed_epsilon
from simulations.correlated_noise.train import at_noise, job, train
from simulations.ntk_margins.margins import kan_kernel, margin, relu_kernel


def test_figure_2_the_averaged_loss_falls_with_correlation_and_levels_off() -> None:
    plain = replace(job("synthetic", mnist_root=None, seed=0), num_rounds=80)
    sites = SimulatedSites(plain, plain.streams())
    loss = {}
    for kappa, lam in ((0.0, 0.0), (11.8, 0.0), (11.8, 0.5), (11.8, 0.9), (11.8, 0.99)):
        noisy = replace(plain, noise=at_noise(kappa, lam))
        found = train(noisy, sites, noisy.mechanism(sites.num_records))
        loss[kappa, lam] = found["averaged_loss"]
    excess = [loss[11.8, lam] - loss[0.0, 0.0] for lam in (0.0, 0.5, 0.9, 0.99)]
    assert excess == sorted(excess, reverse=True)
    assert excess[0] > 2 * excess[1] > 0
    assert abs(excess[2] - excess[3]) < 0.1 * excess[0]


def test_training_again_on_the_same_sites_gives_the_same() -> None:
    plain = replace(job("synthetic", mnist_root=None, seed=1), num_rounds=10)
    sites = SimulatedSites(plain, plain.streams())
    mechanism: Mechanism = plain.mechanism(sites.num_records)
    assert train(plain, sites, mechanism) == train(plain, sites, mechanism)


@pytest.mark.parametrize("sampling", ["poisson", "cyclic"])
def test_a_cell_at_fixed_epsilon_is_calibrated_to_it(shared_dir, sampling: str) -> None:
    plain = fixed_epsilon.base("heart", shared_dir / "data" / "heart_disease", seed=0)
    sites = SimulatedSites(plain, plain.streams())
    cell = {"data": "heart", "sampling": sampling, "correlation": 0.9, "epsilon": 2.0}
    multipliers = [
        fixed_epsilon.calibrated(plain, sites, **(cell | {"epsilon": epsilon})).noise_multiplier
        for epsilon in (1.0, 2.0)
    ]
    assert multipliers[0] > 1.3 * multipliers[1] > 0


def test_the_margin_is_that_of_a_support_vector_machine() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 60))
    labels = rng.choice([-1.0, 1.0], 40)
    kernel = features @ features.T
    through_origin = features * labels[:, None]  # the pair (z, -z) has no offset
    machine = SVC(kernel="linear", C=1e9, tol=1e-10)
    machine.fit(np.vstack([through_origin, -through_origin]), np.repeat([1, -1], 40))
    assert margin(kernel, labels) == pytest.approx(1 / np.linalg.norm(machine.coef_), rel=1e-6)
    assert margin(np.array([[4.0, 0.0], [0.0, 4.0]]), np.array([1.0, -1.0])) == pytest.approx(
        2**0.5
    )
    assert margin(np.ones((2, 2)), np.array([1.0, -1.0])) == pytest.approx(0.0, abs=1e-6)


def test_the_kernel_of_relu_is_that_of_its_gradients() -> None:
    records = MultiInterval(num_records=6).load(Streams.from_seed(0))
    rng = np.random.default_rng(1)
    found = relu_kernel(records, width=5, rng=rng)
    rng = np.random.default_rng(1)
    weights, outer = rng.standard_normal((5, 2)), rng.standard_normal(5)
    inputs = records.features * 2**0.5

    def value(flat: np.ndarray, x: np.ndarray) -> float:
        return float(np.maximum(flat[:10].reshape(5, 2) @ x, 0) @ flat[10:] / 5**0.5)

    start, step = np.concatenate([weights.ravel(), outer]), 1e-6
    gradients = np.array(
        [
            [
                (value(start + step * e, x) - value(start - step * e, x)) / (2 * step)
                for e in np.eye(15)
            ]
            for x in inputs
        ]
    )
    np.testing.assert_allclose(found, gradients @ gradients.T, rtol=1e-5, atol=1e-7)


def test_the_kan_margin_of_multi_interval_is_the_published_one() -> None:
    """Table 1 of [KAN-GD], m = 64: .0883, with n, d, intervals and gap of our choice."""
    found = []
    for seed in range(3):
        streams = Streams.from_seed(seed)
        records = MultiInterval(num_records=300).load(streams)
        kernel = kan_kernel(records, width=64, rng=streams.generator("initial_params"))
        found.append(margin(kernel, records.labels))
    assert np.mean(found) == pytest.approx(0.0883, rel=0.1)
