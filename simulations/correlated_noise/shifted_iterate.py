"""The shifted iterate of [KAN-SGD] on a run of the product's own server, sites and noise.

python -m simulations.correlated_noise.shifted_iterate

With the noise of step t being (C κ/B)(Z_t − λ Z_{t−1}) and no projection, X_t = W_t + η (C κ/B) Z_t
moves by −η (v_t + (1−λ)(C κ/B) Z_{t−1}), v_t the clipped gradients' sum by B; so that
W_t − W_0 = −η (Σ_{s≤t} v_s + (C κ/B)(Z_t + (1−λ) Σ_{s<t} Z_s)). A projection breaks it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.server import Server, rounds
from dpfed_kan.federated.site import Broadcast
from dpfed_kan.privacy.clipping import ClippedSum, Vector
from dpfed_kan.privacy.joint_sampling import total_batch_size
from dpfed_kan.privacy.ledger import Ledger
from dpfed_kan.privacy.noising import standard_normals
from dpfed_kan.simulated_sites import SimulatedSites
from dpfed_kan.update.rule import UpdateState
from dpfed_kan.update.sgd import ProjectedSGD
from simulations.correlated_noise.train import ETA, at_noise, fused_under, job


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far a run is from the identity, relative to the length of what it should have been.

    Args:
        of_a_step: The largest over t of ‖(X_t − X_{t−1}) − expected‖ / ‖expected‖.
        of_the_sum: ‖(W_T − W_0) − expected‖ / ‖expected‖.
        share_projected: Steps after which W had left the ball.
    """

    of_a_step: float
    of_the_sum: float
    share_projected: float


def deviation(experiment: Experiment, sites: SimulatedSites) -> Deviation:
    """Train, and compare every step with the identity.

    Args:
        experiment: With projected SGD and Gaussian noise whose columns are not normalised.
        sites: Of the same data, model and seed.

    Raises:
        TypeError: If the rule is not projected SGD.
        ValueError: If the noise is column-normalised.
    """
    rule, streams = experiment.update, experiment.streams()
    mechanism = experiment.mechanism(sites.num_records)
    if not isinstance(rule, ProjectedSGD):
        raise TypeError(f"expected ProjectedSGD, got {type(rule).__name__}")
    if mechanism.noise.column_normalized:
        raise ValueError("the identity is of noise whose columns are not normalised")
    batch_size = total_batch_size(mechanism.sampling, list(sites.num_records.values()))
    fused = fused_under(sites, mechanism)
    sums: list[Vector] = []

    def sum_over_sites(broadcast: Broadcast) -> ClippedSum:
        total = fused(broadcast)
        sums.append(total.value / batch_size)
        return total

    state: UpdateState = rule.start(sites.params.trainable, num_rounds=mechanism.num_rounds)
    states = rounds(
        Server(
            mechanism=mechanism,
            update_rule=rule,
            num_records=sites.num_records,
            batch_size=batch_size,
        ),
        state,
        sum_over_sites=sum_over_sites,
        streams=streams,
        ledger=Ledger(mechanism=mechanism, num_records=sites.num_records),
    )
    scale = mechanism.l2_clip_norm * mechanism.noise_multiplier / batch_size
    fresh = 1.0 - mechanism.noise.correlation
    before: Vector = np.zeros_like(state.params)  # Z_{−1} = 0, so that X_0 = W_0
    shifted, of_a_step, expected_sum = state.params, 0.0, np.zeros_like(state.params)
    with threadpool_limits(experiment.runtime.num_threads):
        for t, after in enumerate(states):
            normals = standard_normals(streams, round_index=t, dimension=len(before))
            moved_to = after.params + rule.learning_rate * scale * normals
            expected = -rule.learning_rate * (sums[-1] + fresh * scale * before)
            of_a_step = max(of_a_step, _apart(moved_to - shifted, expected))
            expected_sum += expected
            shifted, before, state = moved_to, normals, after
    whole = expected_sum - rule.learning_rate * scale * before
    return Deviation(
        of_a_step=of_a_step,
        of_the_sum=_apart(state.params - state.initial_params, whole),
        share_projected=state.num_projected / state.num_steps,
    )


def _apart(found: Vector, expected: Vector) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def main() -> None:
    """Print the deviation without a ball, and within balls that the run leaves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kappa", type=float, default=6.3)
    parser.add_argument("--correlations", nargs="+", type=float, default=[0.0, 0.5, 0.9])
    parser.add_argument("--radii", nargs="+", type=float, default=[float("inf"), 8.0, 2.0])
    options = parser.parse_args()
    plain = job("synthetic", mnist_root=None, seed=0)
    sites = SimulatedSites(plain, plain.streams())
    print("| λ | R | largest over steps | of W_T − W_0 | steps projected |\n|---|---|---|---|---|")
    for radius in options.radii:
        for lam in options.correlations:
            noisy = replace(
                plain,
                noise=at_noise(options.kappa, lam),
                update=ProjectedSGD(learning_rate=ETA, projection_radius=radius),
            )
            found = deviation(noisy, sites)
            print(
                f"| {lam:g} | {radius:g} | {found.of_a_step:.1e} | {found.of_the_sum:.1e} "
                f"| {found.share_projected:.0%} |"
            )


if __name__ == "__main__":
    main()
