"""`chairlift bench`: reproducible measurements."""

from chairlift.cli.bench import (
    embeddings,
    kernels,
    offline,
    policies,
    quality,
    scheduler,
    serve,
    speculation,
)
from chairlift.cli.command import add_command, new_app

app = new_app("Measure; --json prints one JSON object per line.")
add_command(app, "policies", policies.policies)
add_command(app, "offline", offline.offline)
add_command(app, "embeddings", embeddings.embeddings)
add_command(app, "kernels", kernels.kernels)
add_command(app, "quality", quality.quality)
add_command(app, "scheduler", scheduler.scheduler)
add_command(app, "serve", serve.serve)
add_command(app, "speculation", speculation.speculation)
