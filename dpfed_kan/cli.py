"""`dpfed-kan`: questions about privacy, and about a file before it is used."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dpfed_kan import __version__
from dpfed_kan.cli_advise import add_advise
from dpfed_kan.cli_audit import add_audit
from dpfed_kan.cli_data import add_check_data, add_plan
from dpfed_kan.cli_ledger import add_ledger
from dpfed_kan.cli_pilot import add_pilot
from dpfed_kan.cli_report import add_report
from dpfed_kan.cli_sweep import add_sweep
from dpfed_kan.privacy.accounting import NonPrivate, PrivacyGuarantee, account
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.joint_sampling import BallsInBins, FixedSize, Sampling
from dpfed_kan.privacy.mechanism import NEIGHBORING_RELATIONS, Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson, PoissonBatch

_EXAMPLES = """examples:
  dpfed-kan account --sampling poisson --sampling-prob 0.025 --rounds 400 --delta 1e-5 \\
      --noise-multiplier 6.3 --correlation 0.5
  dpfed-kan calibrate --sampling cyclic --num-batches 40 --rounds 400 --delta 1e-5 --epsilon 2
  dpfed-kan advise --epsilon 2 --delta 1e-5 --records 5000 --batch 125 --rounds 400 --plot a.png
  dpfed-kan check-data schema.yaml records.csv
  dpfed-kan plan outputs/DATE/TIME/config.yaml --plot sites.png
  dpfed-kan audit outputs/DATE/TIME
  dpfed-kan sweep multirun/DATE/TIME
  dpfed-kan ledger verify site.ledger
  dpfed-kan pilot new trial && dpfed-kan pilot up trial
  dpfed-kan report outputs/DATE/TIME
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer one question; exit code 2 and one clear line where it cannot be answered."""
    options = _parser().parse_args(arguments)
    try:
        options.answer(options)
    except (ValueError, TypeError) as error:
        sys.exit(f"error: {error}")


def _account(options: argparse.Namespace) -> None:
    mechanism = _mechanism(options, noise_multiplier=options.noise_multiplier)
    _print(_guarantee(mechanism, options), options)


def _calibrate(options: argparse.Namespace) -> None:
    mechanism = calibrate(
        _mechanism(options, noise_multiplier=None),
        target_epsilon=options.epsilon,
        target_delta=options.delta,
        num_records=options.records,
    )
    _print(_guarantee(mechanism, options), options, noise_multiplier=mechanism.noise_multiplier)


def _guarantee(mechanism: Mechanism, options: argparse.Namespace) -> PrivacyGuarantee | NonPrivate:
    return account(
        mechanism,
        delta=options.delta,
        num_records=options.records,
        cross_check=True,
        rng=np.random.default_rng() if options.draws else None,
    )


def _mechanism(options: argparse.Namespace, *, noise_multiplier: float | None) -> Mechanism:
    return Mechanism(
        sampling=_sampling(options),
        noise=GaussianNoise(
            noise_multiplier=noise_multiplier,
            correlation=options.correlation,
            column_normalized=options.column_normalized,
        ),
        l2_clip_norm=1.0,  # ε does not depend on it: noise is stated per clip norm
        num_rounds=options.rounds,
        neighboring_relation=options.relation,
    )


def _sampling(options: argparse.Namespace) -> Sampling:
    match options.sampling:
        case "poisson":
            _require(options.sampling_prob, "--sampling-prob", "poisson")
            return Poisson(sampling_prob=options.sampling_prob)
        case "poisson_batch":
            _require(options.batch_size, "--batch-size", "poisson_batch")
            _require(options.records, "--records", "poisson_batch")
            return PoissonBatch(site_batch_size=options.batch_size)
        case "fixed_size":
            _require(options.batch_size, "--batch-size", "fixed_size")
            _require(options.records, "--records", "fixed_size")
            return FixedSize(batch_size=options.batch_size)
        case "balls_in_bins":
            _require(options.num_batches, "--num-batches", "balls_in_bins")
            return BallsInBins(num_bins=options.num_batches)
        case "cyclic":
            _require(options.num_batches, "--num-batches", "cyclic")
            return Cyclic(num_batches=options.num_batches)
        case _:
            return FullBatch()


def _require(value: object, flag: str, sampling: str) -> None:
    if value is None:
        raise ValueError(f"--sampling {sampling} needs {flag}")


def _print(
    guarantee: PrivacyGuarantee | NonPrivate,
    options: argparse.Namespace,
    *,
    noise_multiplier: float | None = None,
) -> None:
    if options.json:
        found: dict[str, Any] = asdict(guarantee)
        found |= {
            "epsilon": "infinity" if math.isinf(guarantee.epsilon) else guarantee.epsilon,
            "sentence": guarantee.sentence,
        }
        print(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))
        return
    console = Console()
    if noise_multiplier is not None:
        console.print(f"noise multiplier κ = {noise_multiplier:.6g}", style="bold")
    if isinstance(guarantee, NonPrivate):
        console.print(guarantee.sentence, style="bold red", highlight=False)
        return
    console.print(f"ε = {guarantee.epsilon:.6g} at δ = {guarantee.delta:g}", style="bold")
    table = Table()
    for name in ("bound", "ε", "assumes", "seconds"):
        table.add_column(name, justify="right" if name in ("ε", "seconds") else "left")
    for bound in sorted(guarantee.tried, key=lambda tried: tried.epsilon):
        seconds = f"{bound.seconds:.2f}"
        table.add_row(bound.method, f"{bound.epsilon:.6g}", bound.assumption, seconds)
    for figure in guarantee.compared:
        table.add_row(f"[dim]{figure.method}", f"{figure.epsilon:.6g}", figure.assumption, "")
    console.print(table)
    console.print(f"independent check: {guarantee.check}", highlight=False)
    console.print(f"{guarantee.sentence}.", highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpfed-kan",
        description="What a mechanism guarantees, and what a guarantee needs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dpfed-kan {__version__}")
    verbs = parser.add_subparsers(
        required=True,
        metavar="{account,calibrate,advise,check-data,plan,audit,sweep,ledger,pilot,report}",
    )
    asked = verbs.add_parser("account", help="the ε of a mechanism", description="The ε of a run.")
    asked.add_argument(
        "--noise-multiplier",
        type=float,
        required=True,
        help="κ, noise std per clip norm and coordinate, before correlation",
    )
    asked.set_defaults(answer=_account)
    wanted = verbs.add_parser(
        "calibrate", help="the noise for an ε", description="The least κ that keeps a target ε."
    )
    wanted.add_argument("--epsilon", type=float, required=True, help="target ε of the whole run")
    wanted.set_defaults(answer=_calibrate)
    for verb in (asked, wanted):
        _add_mechanism(verb)
    add_advise(verbs)
    add_check_data(verbs)
    add_plan(verbs)
    add_audit(verbs)
    add_sweep(verbs)
    add_ledger(verbs)
    add_pilot(verbs)
    add_report(verbs)
    return parser


def _add_mechanism(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampling",
        choices=(
            "poisson",
            "poisson_batch",
            "fixed_size",
            "balls_in_bins",
            "cyclic",
            "full_batch",
        ),
        required=True,
        help="who joins a round",
    )
    parser.add_argument(
        "--batch-size", type=int, help="B: of a site for poisson_batch, of all for fixed_size"
    )
    parser.add_argument("--sampling-prob", type=float, help="q in (0, 1], for poisson")
    parser.add_argument("--num-batches", type=int, help="b, for cyclic and balls_in_bins")
    parser.add_argument("--rounds", type=int, required=True, help="T, the horizon")
    parser.add_argument("--delta", type=float, required=True, help="δ, well below 1/n")
    parser.add_argument(
        "--records", type=int, help="n: of the smallest site, or of all for fixed_size"
    )
    parser.add_argument("--correlation", type=float, default=0.0, help="λ in [0, 1); default 0")
    parser.add_argument(
        "--column-normalized", action="store_true", help="scale rows so that columns have norm 1"
    )
    parser.add_argument(
        "--relation",
        choices=NEIGHBORING_RELATIONS,
        default="zero_out",
        help="what may differ between neighbours; default zero_out",
    )
    parser.add_argument(
        "--draws",
        action="store_true",
        help="balls_in_bins: try a bound by Monte Carlo with a stated confidence too",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


if __name__ == "__main__":
    main()
