"""`dpfed-kan`: questions about privacy that need no data."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfed_kan import __version__
from dpfed_kan.privacy.accounting import NonPrivate, PrivacyGuarantee, account
from dpfed_kan.privacy.calibration import calibrate
from dpfed_kan.privacy.joint_sampling import Sampling
from dpfed_kan.privacy.mechanism import NEIGHBORING_RELATIONS, Mechanism
from dpfed_kan.privacy.noising import GaussianNoise
from dpfed_kan.privacy.sampling import Cyclic, FullBatch, Poisson

_EXAMPLES = """examples:
  dpfed-kan account --sampling poisson --sampling-prob 0.025 --rounds 400 --delta 1e-5 \\
      --noise-multiplier 6.3 --correlation 0.5
  dpfed-kan calibrate --sampling cyclic --num-batches 40 --rounds 400 --delta 1e-5 --epsilon 2
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
    )
    _print(_guarantee(mechanism, options), options, noise_multiplier=mechanism.noise_multiplier)


def _guarantee(mechanism: Mechanism, options: argparse.Namespace) -> PrivacyGuarantee | NonPrivate:
    if options.records is not None and options.delta >= 1 / options.records:
        raise ValueError(
            f"expected delta={options.delta:g} below 1/n = {1 / options.records:.3g} for "
            f"n={options.records} records: such a δ lets whole records leak"
        )
    return account(mechanism, delta=options.delta, cross_check=True)


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
    verbs = parser.add_subparsers(required=True, metavar="{account,calibrate}")
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
    return parser


def _add_mechanism(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampling", choices=("poisson", "full_batch", "cyclic"), required=True, help="who joins"
    )
    parser.add_argument("--sampling-prob", type=float, help="q in (0, 1], for poisson")
    parser.add_argument("--num-batches", type=int, help="b, rounds per cycle, for cyclic")
    parser.add_argument("--rounds", type=int, required=True, help="T, the horizon")
    parser.add_argument("--delta", type=float, required=True, help="δ, well below 1/n")
    parser.add_argument("--records", type=int, help="n of the smallest site, to check δ against")
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
    parser.add_argument("--json", action="store_true", help="print JSON")


if __name__ == "__main__":
    main()
