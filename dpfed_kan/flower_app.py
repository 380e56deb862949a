"""The apps that `flwr run` starts: the same training over a SuperLink's grid.

    flwr run . local --stream
        --federation-config "num-supernodes=4 client-resources-num-cpus=1"
        --run-config "output-dir='/absolute/path' overrides='seed=0 noise.correlation=0.8'"

`conf/` travels in the app's bundle. A node whose configuration names its site is a real one, with
a file, a key and a log of its own (docs/pilot.md); any other is simulated: it builds the site that
its partition id stands for from the settings in the message.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from rich.console import Console

from dpfed_kan.config import build, drop_interpolated, to_config
from dpfed_kan.deployment import training
from dpfed_kan.deployment.reporting import deployment_as_json, print_deployment
from dpfed_kan.deployment.serving import OwnSite
from dpfed_kan.experiment import Experiment
from dpfed_kan.federated.deployed import Deployed
from dpfed_kan.flower.client_app import client_app
from dpfed_kan.flower.deployed_client import by_node, deployed_client_app
from dpfed_kan.flower.runtimes import Grid
from dpfed_kan.flower.server_app import RunConfig, server_app
from dpfed_kan.report import as_json, print_report, save
from dpfed_kan.run import run
from dpfed_kan.schema_file import load_schema
from dpfed_kan.simulated_sites import build_site

_CONF = Path(__file__).resolve().parents[1] / "conf"


def compose(overrides: str) -> Experiment:
    """Return the experiment of the packaged configuration.

    Args:
        overrides: As on the command line of `simulations.run`, quoted as in a shell.

    Raises:
        ValueError: If a setting is unknown, missing or out of range, or asks to resume.
    """
    given = shlex.split(overrides)
    if not any(override.startswith("runtime=") for override in given):
        given.insert(0, "runtime=in_process")  # the default sends no messages
    try:
        with hydra.initialize_config_dir(str(_CONF), version_base="1.3"):
            config = hydra.compose("config", overrides=given)
    except HydraException as error:
        raise ValueError(f"overrides: {error}") from None
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ValueError("\n".join(f"{key}: a value is required" for key in missing))
    settings: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    if settings.pop("resume", None) is not None:
        raise ValueError(
            "resume: continue a run with `python -m simulations.run resume=DIR`; it goes on bit "
            "for bit wherever it was started"
        )
    drop_interpolated(settings)
    _place_schema(settings)
    experiment: Experiment = build(settings)
    return experiment


def _place_schema(settings: dict[str, Any]) -> None:
    """Put a schema that is named by its file in its place."""
    source = settings.get("data", {}).get("source", {})
    if isinstance(source.get("schema"), str):
        source["schema"] = to_config(load_schema(Path(source["schema"])))


def train(grid: Grid, config: RunConfig) -> None:
    """Train over a grid and leave the results in output-dir.

    Args:
        grid: Of the sites that `flwr run` has started.
        config: With `overrides` and `output-dir`.

    Raises:
        ValueError: If output-dir is not absolute: the code runs from a copy of the app.
    """
    output_dir = Path(str(config.get("output-dir", "")))
    if not output_dir.is_absolute():
        raise ValueError(
            f"expected output-dir={str(config.get('output-dir', ''))!r} to be an absolute path, as "
            "in --run-config \"output-dir='/home/me/runs/1'\": the code runs from a copy of the app"
        )
    experiment = compose(str(config.get("overrides", "")))
    if isinstance(experiment.runtime, Deployed):
        _train_real_sites(grid, experiment, output_dir, resume=config.get("resume") is True)
        return
    result = run(experiment, output_dir, grid=grid)
    save(result.directory, as_json(result))
    print_report(result, Console())


def _train_real_sites(
    grid: Grid, experiment: Experiment, output_dir: Path, *, resume: bool
) -> None:
    console = Console()

    def tell(num_rounds: int) -> None:
        console.print(f"round {num_rounds} of {experiment.num_rounds} is over", highlight=False)

    if resume:
        found = training.resume(grid, experiment, output_dir, listener=tell)
    else:
        found = training.train(grid, experiment, output_dir, listener=tell)
    save(found.run.directory, deployment_as_json(found))
    print_deployment(found, console)


server = server_app(train)
client = by_node(
    simulated=client_app(build_site, num_threads=1), deployed=deployed_client_app(OwnSite())
)
