"""A run on the screen: what is planned, then rounds, held-out loss, ε so far."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpfed_kan.planning import Planned, as_public_table
from dpfed_kan.training import Progress as RoundProgress


class RunProgress:
    """Told of every round; shows the last values that were measured.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn(
                "held-out loss {task.fields[loss]}  ε so far, as above {task.fields[epsilon]}"
            ),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("rounds", total=None, loss="-", epsilon="-")

    def __enter__(self) -> Self:
        """Draw from the first round on: an error before it has the screen to itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        self._progress.stop()

    def announce(self, planned: Planned) -> None:
        """Show what is planned, before the first round."""
        self._console.print(as_public_table(planned), highlight=False)
        self._console.print(f"Planned: {planned.sentence}", highlight=False)

    def __call__(self, progress: RoundProgress) -> None:
        """Show one more round."""
        self._progress.start()
        shown: dict[str, Any] = {}
        if progress.utility is not None:
            shown["loss"] = f"{progress.utility.loss:.3f}"
        if progress.epsilon is not None:
            shown["epsilon"] = "∞" if math.isinf(progress.epsilon) else f"{progress.epsilon:.3f}"
        self._progress.update(
            self._task, completed=progress.num_rounds, total=progress.planned_rounds, **shown
        )
