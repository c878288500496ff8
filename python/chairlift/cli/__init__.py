"""The `chairlift` command: one file per command, and none imports torch before it runs."""

import typer

from chairlift.cli import bench, chat, demo, generate, kernels, plan, replay, serve, top
from chairlift.cli.errors import OneLineErrors

app = typer.Typer(
    name="chairlift",
    cls=OneLineErrors,
    help="Language models over one gRPC stream, batched continuously.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("demo")(demo.demo)
app.command("top")(top.top)
app.command("plan")(plan.plan)
app.command("replay")(replay.replay)
app.add_typer(bench.app, name="bench")
app.add_typer(kernels.app, name="kernels")
