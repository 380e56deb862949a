import numpy as np
import pytest
from scipy.stats import norm

from dpfed_kan.privacy.accounting.bin_cells import cell_structure, lognormal_average
from dpfed_kan.privacy.accounting.gaussian import gaussian_delta


def test_the_structure_dominates_every_cell_entry_by_entry():
    root = np.random.default_rng(3).random((12, 14))
    gram = root @ root.T
    for num_cells in (1, 2, 3, 4, 6, 12):
        variances, common = cell_structure(gram, num_cells=num_cells)
        dominating = common + np.diag(variances)
        for start in range(num_cells):
            cell = np.arange(start, 12, num_cells)
            assert (dominating >= gram[np.ix_(cell, cell)] - 1e-12).all()


@pytest.mark.parametrize(("own", "common"), [(1.7, 0.0), (0.0, 1.7), (1.0, 0.7)])
def test_one_lognormal_is_one_gaussian(own, common):
    law = lognormal_average(np.array([own]), common=common, delta=1e-5)
    for epsilon in (0.0, 0.5, 2.0, 5.0):
        exact = gaussian_delta(epsilon=epsilon, mu=np.sqrt(1.7))
        for found in (law.remove_delta(epsilon), law.add_delta(epsilon)):
            assert exact <= found <= exact * 1.01 + 2e-9


def sampled(variances, common, num_samples=1_000_000):
    """Draw Y (1/w) Σ_k X_k plainly."""
    rng = np.random.default_rng(5)
    normals = rng.standard_normal((num_samples, len(variances)))
    average = np.exp(normals * np.sqrt(variances) - variances / 2).mean(axis=1)
    return average * np.exp(rng.standard_normal(num_samples) * np.sqrt(common) - common / 2)


@pytest.mark.parametrize("common", [0.0, 0.3])
def test_delta_is_that_of_the_sampled_average(common):
    variances = np.array([0.5, 0.5, 0.1, 0.0, 1.0])
    law, draws = lognormal_average(variances, common=common, delta=1e-5), sampled(variances, common)
    for epsilon in (0.0, 0.4, 1.0):
        for found, parts in [
            (law.remove_delta(epsilon), np.maximum(draws - np.exp(epsilon), 0)),
            (law.add_delta(epsilon), np.maximum(1 - np.exp(epsilon) * draws, 0)),
        ]:
            error = parts.std() / np.sqrt(len(parts))
            assert parts.mean() - 4 * error <= found <= parts.mean() * 1.01 + 4 * error + 1e-7


def test_delta_stays_above_an_exact_value_in_both_directions():
    """Two bins with one common factor: integrated over the other normals by brute force."""
    variances, common = np.array([0.8, 0.8]), 0.4
    law = lognormal_average(variances, common=common, delta=1e-6)
    axis = np.linspace(-9, 9, 241)
    mass = norm.pdf(axis) * (axis[1] - axis[0])
    x = np.exp(axis * np.sqrt(0.8) - 0.4)
    y = np.exp(axis * np.sqrt(0.4) - 0.2)
    ratio = (x[:, None, None] + x[None, :, None]) / 2 * y
    base = mass[:, None, None] * mass[None, :, None] * mass
    for epsilon in (0.5, 2.0, 3.5):
        remove = (base * np.maximum(ratio - np.exp(epsilon), 0)).sum()
        add = (base * np.maximum(1 - np.exp(epsilon) * ratio, 0)).sum()
        assert remove * (1 - 2e-3) <= law.remove_delta(epsilon) <= remove * 1.01 + 1e-9
        assert add * (1 - 2e-3) <= law.add_delta(epsilon) <= add * 1.01 + 1e-9


def test_no_mass_is_lost_and_the_grid_keeps_the_mean():
    law = lognormal_average(np.array([2.0, 0.5, 0.0]), common=0.4, delta=1e-5)
    assert law.add[1].sum() == pytest.approx(1.0, abs=1e-9)
    assert law.factor[1].sum() == pytest.approx(1.0, abs=1e-12)
    assert law.factor[0] @ law.factor[1] == pytest.approx(1.0, abs=1e-8)
    assert law.remove[1].sum() == pytest.approx(1.0, abs=1e-8)  # the mean, as it is tilted
    assert 1e-10 < law.slack < 1e-8
