"""``penstock web``: the page."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import StoreFolder, folder_of_store, option


def web(
    host: Annotated[str, option("Address to listen at.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[
        int | None, option("Port; the first free one from 7367 on, unless given.", min=0, max=65535)
    ] = None,
    allow_host: Annotated[
        list[str] | None, option("Another name of this server, for browsers; repeatable.", metavar="NAME")
    ] = None,
    store: StoreFolder = None,
) -> None:
    """Show runs and feeds in a browser, live, until Ctrl-C."""
    import os
    import socket

    from penstock.basics.packages import require

    require("penstock web", "web", "starlette", "uvicorn")
    from penstock.web.access import LOCAL
    from penstock.web.application import serve

    def print_address(token: str, at: int) -> None:
        if host in LOCAL:
            user = os.environ.get("USER")  # in a container, nobody may know it
            there = f"{user}@{socket.gethostname()}" if user else socket.gethostname()
            typer.echo(f"From another machine: ssh -L {at}:localhost:{at} {there}, then open:", err=True)
        else:
            typer.echo(
                f"penstock: {host} is open to the network, and what it sends can be read on the way: "
                "an SSH forward to 127.0.0.1 is safer.",
                err=True,
            )
        shown = socket.gethostname() if host in {"0.0.0.0", "::"} else f"[{host}]" if ":" in host else host
        typer.echo(f"http://{shown}:{at}/?token={token}")

    serve(folder_of_store(store), host=host, port=port, allowed=allow_host or (), on_open=print_address)
