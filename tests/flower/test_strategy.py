from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from dpfed_kan.data.federation import IID, FederatedData
from dpfed_kan.data.synthetic import SyntheticLogistic
from dpfed_kan.experiment import Experiment, PrivacySettings
from dpfed_kan.federated.runtimes import InProcess
from dpfed_kan.federated.server import RoundRefused, Server
from dpfed_kan.flower.client_app import client_app
from dpfed_kan.flower.exchange import meet_sites
from dpfed_kan.flower.grid import InProcessGrid
from dpfed_kan.flower.records import decode_vector
from dpfed_kan.flower.strategy import PrivateStrategy
from dpfed_kan.kan import TwoLayerKAN
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Poisson
from dpfed_kan.run import run
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.update.sgd import ProjectedSGD

NUM_ROUNDS = 4


@pytest.fixture
def experiment():
    return Experiment(
        data=FederatedData(
            source=SyntheticLogistic(num_records=90, input_dim=3), partition=IID(num_sites=3)
        ),
        model=TwoLayerKAN(hidden_width=2, num_basis=5, spline_degree=2),
        sampling=Poisson(sampling_prob=0.5),
        noise=GaussianNoise(noise_multiplier=1.0, correlation=0.5),
        privacy=PrivacySettings(l2_clip_norm=0.5, target_epsilon=None, target_delta=1e-3),
        update=ProjectedSGD(learning_rate=1.0, projection_radius=0.3),
        runtime=InProcess(),
        num_rounds=NUM_ROUNDS,
        evaluate_every=100,
        seed=3,
    )


@pytest.fixture
def grid_and_strategy(experiment):
    streams = experiment.streams()
    sites = SimulatedSites(experiment, streams)
    mechanism = experiment.mechanism(sites.num_records)
    server = Server(
        mechanism=mechanism,
        update_rule=experiment.update,
        num_records=sites.num_records,
        batch_size=sum(
            mechanism.sampling.expected_batch_size(n) for n in sites.num_records.values()
        ),
    )
    grid = InProcessGrid(client_app(sites), len(sites.num_records))
    state = experiment.update.start(sites.params.trainable)
    strategy = PrivateStrategy(
        server=server,
        state=state,
        exchange=meet_sites(
            grid,
            num_records=sites.num_records,
            num_params=len(state.params),
            settings=sites.settings,
            timeout=1.0,
        ),
        streams=streams,
        ledger=Ledger(mechanism=mechanism, num_records=sites.num_records),
    )
    return grid, strategy


def start(grid, strategy, num_rounds=NUM_ROUNDS):
    return strategy.start(grid, strategy.initial_arrays, num_rounds=num_rounds)


def test_start_ends_with_the_params_of_run_bit_for_bit(experiment, grid_and_strategy, tmp_path):
    grid, strategy = grid_and_strategy
    result = start(grid, strategy)
    state = run(experiment, tmp_path / "run").directory.load_checkpoint()
    assert strategy.state.num_steps == state.num_steps == NUM_ROUNDS
    assert strategy.state.params.tobytes() == state.params.tobytes()
    assert strategy.state.num_projected == state.num_projected
    assert decode_vector(result.arrays["params"]).tobytes() == state.params.tobytes()
    assert not result.evaluate_metrics_clientapp


def test_every_round_of_start_is_in_the_ledger(grid_and_strategy):
    grid, strategy = grid_and_strategy
    start(grid, strategy)
    assert [event.round_index for event in strategy._ledger.events] == list(range(NUM_ROUNDS))


@pytest.mark.parametrize(
    "arrays",
    [
        ArrayRecord(),
        ArrayRecord({"params": Array(np.zeros(3))}),
        ArrayRecord({"other": Array(np.zeros(3))}),
    ],
)
def test_params_that_are_not_of_the_last_release_are_refused(grid_and_strategy, arrays):
    grid, strategy = grid_and_strategy
    with pytest.raises(ValueError, match="expected the params of the last release"):
        strategy.start(grid, arrays, num_rounds=1)
    assert strategy.state.num_steps == 0


def test_the_params_of_an_earlier_round_are_refused(grid_and_strategy):
    grid, strategy = grid_and_strategy
    first = strategy.initial_arrays
    start(grid, strategy, num_rounds=1)
    with pytest.raises(ValueError, match="only a release moves them"):
        strategy.configure_train(2, first, ConfigRecord(), grid)


def test_more_rounds_than_planned_are_refused_before_a_message_is_sent(grid_and_strategy):
    grid, strategy = grid_and_strategy
    start(grid, strategy)
    with pytest.raises(ValueError, match="all 4 rounds that were planned"):
        start(grid, strategy, num_rounds=1)
    assert strategy.state.num_steps == NUM_ROUNDS


def test_a_missing_reply_stops_the_strategy_with_nothing_released(grid_and_strategy):
    grid, strategy = grid_and_strategy
    messages = strategy.configure_train(1, strategy.initial_arrays, ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))[1:]
    with pytest.raises(RoundRefused, match="site-1: no answer"):
        strategy.aggregate_train(1, replies)
    assert not strategy._ledger.events
    assert strategy.state.num_steps == 0
