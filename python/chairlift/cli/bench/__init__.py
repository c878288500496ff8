"""`chairlift bench`: figures that can be made again."""

import typer

from chairlift.cli.bench import kernels, offline, policies, scheduler, serve

app = typer.Typer(help="Measure; --json prints one JSON object per line.", no_args_is_help=True)
app.command("policies")(policies.policies)
app.command("offline")(offline.offline)
app.command("kernels")(kernels.kernels)
app.command("scheduler")(scheduler.scheduler)
app.command("serve")(serve.serve)
