"""``penstock runs push``: runs to an MLflow server."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.runs_options import StoreFolder


def push(
    mlflow: Annotated[
        str, typer.Option(metavar="URI", envvar="MLFLOW_TRACKING_URI", help="The MLflow server: http://host:5000.")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN|GROUP...]", help="Ids of runs, names or ids of groups; all unless given."),
    ] = None,
    experiment: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Experiment; $MLFLOW_EXPERIMENT_NAME, or each group's name, unless given."
        ),
    ] = "",
    store: StoreFolder = None,
) -> None:
    """Push runs to an MLflow server: what it has is not pushed again."""
    from penstock.runs.push.beside import check_mlflow
    from penstock.runs.store import Store

    check_mlflow()
    from penstock.runs.push.to_mlflow import Push

    with Store.open(store) as opened:
        found = (
            [run for word in words for run in opened.runs(word) or [opened.run(word)]] if words else opened.runs()
        )
        push = Push(opened, mlflow, experiment)
        for group in dict.fromkeys(run.group_id for run in found):
            push.runs([run for run in found if run.group_id == group])
    typer.echo(f"{push.points:,} points and {push.files:,} files of {len(found):,} runs were new there.")
