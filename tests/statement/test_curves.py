"""What the plots are drawn from: noise as it is drawn, rounds as they were, ends as declared."""

import numpy as np
import pytest

from dpfed_kan.data.encoding import encoded_names
from dpfed_kan.data.heart_disease import complete_schema
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise, draw_noise
from dpfed_kan.privacy.sampling import FullBatch
from dpfed_kan.statement import curves
from dpfed_kan.streams import Streams

T, D, CLIP = 12, 40_000, 0.3


def mechanism(noise: GaussianNoise | NoNoise, num_rounds: int = T) -> Mechanism:
    return Mechanism(sampling=FullBatch(), noise=noise, l2_clip_norm=CLIP, num_rounds=num_rounds)


@pytest.mark.parametrize(("lam", "normalized"), [(0.0, False), (0.6, False), (0.9, True)])
def test_the_noise_that_is_shown_is_the_noise_that_is_drawn(lam: float, normalized: bool) -> None:
    noise = GaussianNoise(noise_multiplier=2.0, correlation=lam, column_normalized=normalized)
    streams = Streams.from_seed(0)
    drawn = np.array(
        [
            CLIP * draw_noise(noise, streams=streams, round_index=t, num_rounds=T, dimension=D)
            for t in range(T)
        ]
    )
    shown = curves.noise(mechanism(noise))
    assert [row["round"] for row in shown] == list(range(1, T + 1))
    assert [row["std"] for row in shown] == pytest.approx(drawn.std(axis=1), rel=0.02)
    sums = np.cumsum(drawn, axis=0)
    assert [row["std_of_sum"] for row in shown] == pytest.approx(sums.std(axis=1), rel=0.02)
    measured = [np.corrcoef(drawn[t - 1], drawn[t])[0, 1] for t in range(1, T)]
    assert shown[0]["correlation_with_previous"] == 0
    assert [row["correlation_with_previous"] for row in shown[1:]] == pytest.approx(
        measured, abs=0.02
    )


def test_without_noise_there_is_none_to_show() -> None:
    assert curves.noise(mechanism(NoNoise())) == []


def test_many_rounds_are_thinned_and_the_ends_kept() -> None:
    shown = curves.noise(mechanism(GaussianNoise(noise_multiplier=1.0), num_rounds=5000))
    places = [row["round"] for row in shown]
    assert len(places) <= 100
    assert (places[0], places[1], places[-1]) == (1, 2, 5000)
    assert places == sorted(set(places))


def test_rounds_after_the_last_checkpoint_and_those_without_a_figure_are_left_out() -> None:
    rows = [
        {"round": 1, "epsilon": None},
        {"round": 2, "epsilon": 0.5, "held_out_loss": 0.7, "held_out_accuracy": None},
        {"round": 3, "epsilon": 0.6},
    ]
    assert curves.rounds(rows, num_rounds=2) == [rows[1]]


def test_every_encoded_input_has_declared_ends() -> None:
    schema = complete_schema()
    ends = curves.declared_ends(schema)
    assert tuple(ends) == encoded_names(schema)
    assert ends["age"] == ("20", "80")
    assert ends["slope"] == ("1", "3")
    assert ends["cp=4"] == ends["chol is missing"] == ("no", "yes")
