"""The edge functions are those that the network computes with."""

import numpy as np
import pytest

from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.kan.edges import edge_functions
from dpfed_kan.kan.model import as_tensor, expand_inputs, hidden_units, split_params


@pytest.mark.parametrize("second", [False, True])
def test_edges_add_up_to_what_enters_a_hidden_unit(second: bool) -> None:
    model = TwoLayerKAN(hidden_width=5, train_second_layer=second)
    params = model.initialize(3, np.random.default_rng(0))
    edges = edge_functions(model, params.trainable, input_dim=3, half_width=0.8, num_points=9)
    first_layer, _ = split_params(model, params.trainable, params.frozen, 3)
    for point in range(9):
        features = np.full((1, 3), edges.x[point])
        h = hidden_units(model, first_layer, expand_inputs(model, as_tensor(features)))
        total = edges.values[:, :, point].sum(axis=1)
        assert np.tanh(total) == pytest.approx(h.numpy()[0])


def test_the_strongest_edge_is_the_one_that_varies_most_and_not_the_highest() -> None:
    model = TwoLayerKAN(hidden_width=2)
    weights = np.zeros((2, 3, model.num_basis))
    weights[0, 1] = 7.0  # constant: the basis sums to one
    weights[1, 2] = np.linspace(-1, 1, model.num_basis)
    edges = edge_functions(model, weights.ravel(), input_dim=3, half_width=1.0, num_points=41)
    assert edges.strongest(1) == [(1, 2)]
    assert edges.strengths[0, 1] == pytest.approx(0, abs=1e-12)
    assert np.ptp(edges.values[1, 2]) == pytest.approx(2 / np.sqrt(3))


def test_parameters_of_another_network_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 36 trainable parameters"):
        edge_functions(
            TwoLayerKAN(hidden_width=2), np.zeros(7), input_dim=3, half_width=1.0, num_points=3
        )
