"""The process of a rank whose emulated GPU has little memory."""

from chairlift.engine.loading import rank_process

from tests.cuda.emulated_device import EmulatedDevice


class PoorDevice(EmulatedDevice):
    def free_bytes(self):
        return 1 << 20


def main(settings):
    rank_process.main(settings, PoorDevice())
