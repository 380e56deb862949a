"""The ServerApp: what `flwr run` starts on the side of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

RunConfig = Mapping[str, bool | bytes | float | int | str]


def server_app(main: Callable[[Grid, RunConfig], None]) -> ServerApp:
    """Return an app that calls `main` with its grid and the run's configuration.

    An exception of `main` ends the run as failed.
    """
    app = ServerApp()

    @app.main()
    def _(grid: Grid, context: Context) -> None:
        main(grid, context.run_config)

    return app
