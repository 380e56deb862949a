import math

import numpy as np
import pytest

from dpfed_kan.privacy.clipping import ClippedSum
from dpfed_kan.privacy.mechanism import Mechanism
from dpfed_kan.privacy.noising import GaussianNoise, NoNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, PoissonBatch
from dpfed_kan.streams import Streams

STREAMS = Streams.from_seed(0)


def mechanism(**changes: object) -> Mechanism:
    settings: dict[str, object] = {
        "sampling": FullBatch(),
        "noise": GaussianNoise(noise_multiplier=1.5, correlation=0.5),
        "l2_clip_norm": 2.0,
        "num_rounds": 3,
    }
    return Mechanism(**(settings | changes))  # type: ignore[arg-type]


def zeros(sensitivity: float = 2.0, dimension: int = 10_000) -> ClippedSum:
    return ClippedSum(value=np.zeros(dimension), l2_sensitivity=sensitivity)


@pytest.mark.parametrize("clip", [1.0, 2.0])
def test_noise_over_sensitivity_is_the_multiplier(clip: float) -> None:
    """Trial P14: doubling the clip doubles the noise of the sum, and does nothing else."""
    release = mechanism(l2_clip_norm=clip).privatize(zeros(clip), round_index=0, streams=STREAMS)
    assert release.value.std() / clip == pytest.approx(1.5, rel=0.03)
    assert release.event.noise_multiplier == 1.5
    assert release.event.l2_sensitivity == clip


def test_a_release_is_the_sum_plus_noise_that_does_not_depend_on_it() -> None:
    value = np.linspace(-1, 1, 10_000)
    quiet = mechanism().privatize(zeros(), round_index=1, streams=STREAMS)
    loud = mechanism().privatize(
        ClippedSum(value=value, l2_sensitivity=2.0), round_index=1, streams=STREAMS
    )
    np.testing.assert_allclose(loud.value - quiet.value, value, atol=1e-12)
    assert loud.event.release_sha256 != quiet.event.release_sha256


def test_a_sum_that_promises_another_sensitivity_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a sum of sensitivity 2"):
        mechanism().privatize(zeros(1.0), round_index=0, streams=STREAMS)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_sum_that_is_not_finite_is_refused(poison: float) -> None:
    total = ClippedSum(value=np.array([0.0, poison]), l2_sensitivity=2.0)
    with pytest.raises(ValueError, match="finite"):
        mechanism().privatize(total, round_index=0, streams=STREAMS)


@pytest.mark.parametrize("round_index", [-1, 3, 100])
def test_a_round_beyond_the_horizon_is_refused(round_index: int) -> None:
    with pytest.raises(ValueError, match=r"round_index=.* in \[0, 3\)"):
        mechanism().privatize(zeros(), round_index=round_index, streams=STREAMS)


@pytest.mark.parametrize("noise", [NoNoise(), GaussianNoise(noise_multiplier=0.0)])
def test_without_noise_the_sum_is_released_as_it_is(noise: NoNoise | GaussianNoise) -> None:
    total = ClippedSum(value=np.arange(3.0), l2_sensitivity=math.inf)
    release = mechanism(noise=noise, l2_clip_norm=math.inf).privatize(
        total, round_index=2, streams=STREAMS
    )
    np.testing.assert_array_equal(release.value, np.arange(3.0))
    assert release.event.noise_multiplier == 0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"l2_clip_norm": math.inf}, "l2_clip_norm"),
        ({"l2_clip_norm": 0.0}, "l2_clip_norm"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"num_rounds": 2.5}, "num_rounds"),
        ({"neighboring_relation": "nearby"}, "zero_out, add_remove, replace_one"),
        (
            {"neighboring_relation": "add_remove", "sampling": PoissonBatch(site_batch_size=5)},
            "a rate that depends on a site's size",
        ),
    ],
)
def test_bad_settings_are_named_with_their_range(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        mechanism(**changes)


def test_a_mechanism_that_is_not_calibrated_releases_nothing() -> None:
    with pytest.raises(ValueError, match="target_epsilon"):
        mechanism(noise=GaussianNoise()).privatize(zeros(), round_index=0, streams=STREAMS)


def test_a_cyclic_order_does_not_hide_that_a_record_was_removed() -> None:
    """All later records move into other batches: .93 was said where 5.7 to 768 is true."""
    with pytest.raises(ValueError, match="moves all later ones into other batches"):
        Mechanism(
            sampling=Cyclic(num_batches=2),
            noise=GaussianNoise(noise_multiplier=4.0),
            l2_clip_norm=1.0,
            num_rounds=2,
            neighboring_relation="add_remove",
        )
