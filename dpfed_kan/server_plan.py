"""The server's side of a run, from what is known of the sites; all is checked here."""

from __future__ import annotations

from collections.abc import Mapping

from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.server import Server
from dpfed_kan.privacy.joint_sampling import total_batch_size


def plan_server(experiment: Experiment, num_records: Mapping[str, int]) -> Server:
    """Check δ, calibrate, and return the server.

    Args:
        experiment: What to run.
        num_records: Site name to n_k.

    Raises:
        ValueError: If δ is too large for the smallest site, or the noise cannot be found.
    """
    smallest = min(num_records, key=lambda site: num_records[site])
    private = experiment.noise.noise_multiplier != 0
    if private and experiment.privacy.target_delta >= 1 / num_records[smallest]:
        raise ValueError(
            f"expected target_delta={experiment.privacy.target_delta:g} below 1/n = "
            f"{1 / num_records[smallest]:.3g} at every site, but {smallest} has "
            f"n={num_records[smallest]} records: such a δ lets whole records leak"
        )
    mechanism = experiment.mechanism(num_records)
    return Server(
        mechanism=mechanism,
        update_rule=experiment.update,
        num_records=num_records,
        batch_size=total_batch_size(mechanism.sampling, list(num_records.values())),
    )
