"""`dpfed-kan advise`: which sampling and which λ let the least noise through, as table and plot."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpfed_kan.privacy.advising import Advice, advise
from dpfed_kan.privacy.descent_advice import moderate_steps
from dpfed_kan.privacy.mechanism import NEIGHBORING_RELATIONS
from dpfed_kan.privacy.sampling import FullBatch


def add_advise(verbs: Any) -> None:
    """Add the verb to a parser's verbs."""
    parser = verbs.add_parser(
        "advise",
        help="the sampling and λ with the least noise",
        description="Rank sampling and correlation by the noise that reaches the model at an ε: "
        "the root mean square of the prefix sums' noise, per record of a batch.",
    )
    parser.add_argument("--epsilon", type=float, required=True, help="target ε of the whole run")
    parser.add_argument("--delta", type=float, required=True, help="δ, well below 1/n")
    parser.add_argument("--records", type=int, required=True, help="n, over all sites")
    parser.add_argument("--batch", type=int, required=True, help="B, over all sites")
    parser.add_argument("--rounds", type=int, required=True, help="T")
    parser.add_argument(
        "--relation",
        choices=NEIGHBORING_RELATIONS,
        default="zero_out",
        help="what may differ between neighbours; default zero_out",
    )
    parser.add_argument(
        "--input-dim",
        type=int,
        help="d: says also how many steps of full-batch descent [KAN-GD] advises; with --json the "
        "answer is then an object",
    )
    parser.add_argument("--plot", type=Path, help="write a picture here (extra plots)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(answer=_advise)


def _advise(options: argparse.Namespace) -> None:
    if options.plot is not None and options.plot.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"expected --plot {options.plot} to end in .png, .pdf or .svg")
    steps = None
    if options.input_dim is not None:
        steps = moderate_steps(
            num_records=options.records, epsilon=options.epsilon, input_dim=options.input_dim
        )
    rows = advise(
        target_epsilon=options.epsilon,
        target_delta=options.delta,
        num_records=options.records,
        batch_size=options.batch,
        num_rounds=options.rounds,
        neighboring_relation=options.relation,
    )
    if options.plot is not None:
        plot(rows, options.plot, title=_title(options))
    if options.json:
        named = [asdict(row) | {"sampling": row.sampling.describe()} for row in rows]
        answer = named if steps is None else {"ranked": named, "full_batch_steps": steps}
        print(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False))
        return
    console = Console()
    console.print(as_table(rows, title=_title(options)))
    console.print(verdict(rows), highlight=False)
    if steps is not None:
        console.print(descent(steps), highlight=False)


def _title(options: argparse.Namespace) -> str:
    return (
        f"ε={options.epsilon:g}, δ={options.delta:g}, n={options.records}, B={options.batch}, "
        f"T={options.rounds}, {options.relation.replace('_', '-')}"
    )


def best_of_each(rows: Sequence[Advice]) -> list[Advice]:
    """Return each sampler's best row, least noise first, from rows that are sorted so."""
    best: dict[str, Advice] = {}
    for row in rows:
        best.setdefault(row.sampling.describe(), row)
    return list(best.values())


def as_table(rows: Sequence[Advice], *, title: str) -> Table:
    """Return each sampler's best λ beside its λ = 0."""
    table = Table(title=title)
    for name in ("sampling", "best λ", "κ", "noise", "κ at λ=0", "noise at λ=0", "λ saves"):
        table.add_column(name, justify="left" if name == "sampling" else "right")
    for best in best_of_each(rows):
        plain = _independent(rows, best)
        normalized = " normalised" if best.column_normalized else ""
        saved = 1 - best.error_per_record / plain.error_per_record
        table.add_row(
            best.sampling.describe(),
            f"{best.correlation:g}{normalized}",
            f"{best.noise_multiplier:.4g}",
            f"{best.error_per_record:.4g}",
            f"{plain.noise_multiplier:.4g}",
            f"{plain.error_per_record:.4g}",
            f"{saved:.0%}",
        )
    return table


def verdict(rows: Sequence[Advice]) -> str:
    """Say in words what the ranking found."""
    best = best_of_each(rows)
    helped = [row.sampling.describe() for row in best if row.correlation > 0]
    not_helped = [row.sampling.describe() for row in best if row.correlation == 0]
    winner = best[0]
    words = [f"Least noise: {winner.sampling.describe()}, λ={winner.correlation:g}."]
    if helped:
        words.append(f"Correlation pays with: {'; '.join(helped)}.")
    if not_helped:
        words.append(f"Correlation does not pay with: {'; '.join(not_helped)}.")
    if isinstance(winner.sampling, FullBatch) and len(best) > 1:
        second = best[1].sampling.describe()
        words.append(f"Full batches differentiate every record in every round; next: {second}.")
    return " ".join(words)


def descent(steps: int) -> str:
    """Say in words how long full-batch descent should be."""
    return (
        f"Full batches with both layers trained: T of about n ε/√d = {steps} steps at a learning "
        "rate η near 1 (at others it is η T that counts) and a moderate width, by the order of "
        "[KAN-GD] arXiv 2601.22409, whose constant is not known. What was seen beside it: "
        "simulations/kan_gd."
    )


def plot(rows: Sequence[Advice], path: Path, *, title: str) -> None:
    """Draw noise against λ, a line for each sampler.

    Raises:
        ValueError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs the extra: pip install 'dpfed-kan[plots]'") from None
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots()
    for best in best_of_each(rows):
        name = best.sampling.describe().split(",")[0]
        mine = [row for row in rows if row.sampling == best.sampling]
        line = sorted((r.correlation, r.error_per_record) for r in mine if not r.column_normalized)
        (drawn,) = axes.plot(*zip(*line, strict=True), marker="o", label=name)
        normalized = [(r.correlation, r.error_per_record) for r in mine if r.column_normalized]
        if normalized:
            axes.plot(
                *zip(*normalized, strict=True), marker="*", markersize=14, linestyle="none",
                color=drawn.get_color(), label=f"{name}, column-normalised",
            )  # fmt: skip
    axes.set(xlabel="correlation λ", ylabel="noise in a prefix sum, per record of a batch")
    axes.set(yscale="log", title=title)
    axes.grid(alpha=0.3, which="both")
    figure.legend(fontsize="small", loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


def _independent(rows: Sequence[Advice], like: Advice) -> Advice:
    return next(r for r in rows if r.sampling == like.sampling and r.correlation == 0)
