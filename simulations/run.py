"""The one Hydra entry: `python -m simulations.run [group=option] [key=value] [-m]`."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from simulations.sweeping import Announcer, SweepFailed, finish, run_job

if TYPE_CHECKING:
    from dpfed_kan.experiment import Experiment
    from dpfed_kan.run import Run

_CONF = Path(__file__).resolve().parents[1] / "conf"
_INTERRUPTED = 130


class _Failed(Exception):
    """A run failed for a reason that its message tells in full."""


@hydra.main(version_base="1.3", config_path=str(_CONF), config_name="config")
def _hydra_main(config: DictConfig) -> None:
    output_dir = Path(HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        stop = bool(config.get("stop_at_failure"))
        run_job(lambda: _experiment(config), _train_quietly, stop_at_failure=stop)
        return
    try:
        _run(config, output_dir)
    except (ValueError, RuntimeError) as error:
        _remove_if_empty(output_dir)
        raise _Failed(str(error)) from error
    except KeyboardInterrupt:
        print(
            "interrupted; rounds that were released stay in the ledger. Continue with "
            f"resume={config.get('resume') or output_dir}",
            file=sys.stderr,
        )
        raise


def _run(config: DictConfig, output_dir: Path) -> None:
    resume_dir = config.get("resume")
    experiment = _experiment(config) if resume_dir is None else None  # before torch is loaded
    from rich.console import Console

    from dpfed_kan.report import as_json, print_report, save
    from dpfed_kan.run import resume, run
    from simulations.progress import RunProgress

    console = Console()
    with RunProgress(console) as progress:
        if experiment is not None:
            result = run(experiment, output_dir, listener=progress, announce=progress.announce)
        else:
            _remove_if_empty(output_dir)
            result = resume(
                _resumable(str(resume_dir)), listener=progress, announce=progress.announce
            )
    save(result.directory, as_json(result))
    print_report(result, console)


def _train_quietly(experiment: Experiment, output_dir: Path, begun: bool) -> Run:
    """Run a job of a sweep, or go on with it, and leave its report."""
    from dpfed_kan.report import as_json, save
    from dpfed_kan.run import resume, run

    result = resume(output_dir) if begun else run(experiment, output_dir)
    save(result.directory, as_json(result))
    return result


def _experiment(config: DictConfig) -> Experiment:
    """Return what a composed configuration describes.

    Raises:
        ValueError: With every problem of it.
    """
    from dpfed_kan.config import build, drop_interpolated

    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ValueError("\n".join(f"{key}: a value is required" for key in missing))
    settings: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    if settings.pop("resume", None) is not None:
        raise ValueError("resume continues one run: leave out -m")
    drop_interpolated(settings)
    _place_files(settings)
    experiment: Experiment = build(settings)
    return experiment


def _place_files(settings: dict[str, Any]) -> None:
    """Let the source's root and a schema's path count from where the command was given.

    The path becomes absolute, so that a run can be continued from anywhere. A schema that is named
    by its file is put in its place.
    """
    source = settings.get("data", {}).get("source", {})
    if isinstance(source.get("root"), str):
        source["root"] = hydra.utils.to_absolute_path(source["root"])
    if isinstance(source.get("schema"), str):
        from dpfed_kan.config import to_config
        from dpfed_kan.schema_file import load_schema

        path = Path(hydra.utils.to_absolute_path(source["schema"]))
        source["schema"] = to_config(load_schema(path))


def _resumable(resume_dir: str) -> Path:
    """Refuse settings beside resume: a run continues under its own plan."""
    others = [
        o for o in HydraConfig.get().overrides.task if not o.lstrip("+").startswith("resume=")
    ]
    if others:
        raise ValueError(
            f"resume={resume_dir} continues a run under its own plan, which its account covers and "
            f"nothing else: remove {', '.join(others)}, or start a new run with them"
        )
    return Path(hydra.utils.to_absolute_path(resume_dir))


def _remove_if_empty(directory: Path) -> None:
    for path in (directory, directory.parent):
        try:
            path.rmdir()
        except OSError:  # not empty, or not there: both are fine
            return


def _explain(error: HydraException) -> str:
    """Return Hydra's message, with the nearest known key for one that does not exist."""
    text = str(error)
    words = text.replace("'", " ").replace("=", " ").split()
    known = list(_keys(_defaults()))
    for word in words:
        close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
        if close and word not in known and f"override '{word}'" in text:
            return f"{word}: unknown setting; did you mean {close[0]}?"
    if text.startswith("Could not override"):
        return f"{text.splitlines()[0]} There are {', '.join(_defaults())}"
    return text


def _defaults() -> Mapping[str, Any]:
    with hydra.initialize_config_dir(str(_CONF), version_base="1.3"):
        return OmegaConf.to_container(hydra.compose("config"))  # type: ignore[return-value]


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")


def _run_all() -> None:
    try:
        _hydra_main()
    except (_Failed, HydraException, OSError):
        raise
    except Exception as error:  # such as a worker that the system has killed
        if not Announcer.started:
            raise
        print(f"the sweep broke off: {type(error).__name__}: {error}", file=sys.stderr)
        finish(Announcer.started)
        raise
    finish(Announcer.started)


def main() -> None:
    """Run, and end with one clear line and an exit code where something is wrong."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors come here, to be told in one line
    try:
        _run_all()
    except SweepFailed as error:
        sys.exit(f"error: {error}")
    except _Failed as error:
        sys.exit(f"error: {error}")
    except HydraException as error:
        sys.exit(f"error: {_explain(error)}")
    except OSError as error:
        sys.exit(
            f"error: the output directory cannot be written to: {error.filename}: "
            f"{error.strerror}; choose another with hydra.run.dir=... (hydra.sweep.dir with -m)"
        )
    except KeyboardInterrupt:
        for directory in Announcer.started:
            print(
                f"the sweep was interrupted: the same command with hydra.sweep.dir={directory} "
                "skips what is finished and goes on with the rest",
                file=sys.stderr,
            )
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
