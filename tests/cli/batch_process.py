"""`chairlift batch` in processes that can be killed, forked from one that has torch in memory."""

import multiprocessing
import os
import resource

# What takes seconds to import, once for all of them.
import chairlift.cli.batch.local
import chairlift.cli.batch.remote
import chairlift.engine.engine  # noqa: F401
from chairlift.cli import app

LIMIT_S = 60.0


def context():
    """Return what starts the processes."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    return forks


def run(arguments, log, max_file_bytes=None):
    """Run the command; what it prints goes to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, resource.RLIM_INFINITY))
    app([str(argument) for argument in arguments])
