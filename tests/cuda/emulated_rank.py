"""The process of a rank whose GPU is emulated."""

from chairlift.engine.loading import rank_process

from tests.cuda.emulated_device import EmulatedDevice


def main(settings):
    rank_process.main(settings, EmulatedDevice(settings["num_ranks"]))
