"""A program whose CPUID is held says that the processor has AVX2, and nothing wider."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers.held_libraries import CPUID, hold, make_preloaded

PROGRAM = r"""
#include <cpuid.h>
#include <stdio.h>

int main(void) {
    for (unsigned leaf = 0; leaf < 8; leaf++) {
        unsigned a, b, c, d;
        __cpuid_count(leaf, 0, a, b, c, d);
        /* The number of the core, which changes, stands in leaf 1. */
        printf("%x %x %x\n", leaf == 7 ? b : 0, leaf == 7 ? c : 0, leaf == 0 ? b : 0);
    }
    return 0;
}
"""
WIDER = (1 << 16) | (1 << 17) | (1 << 21) | (1 << 28) | (1 << 30) | (1 << 31)
"""AVX-512 F, DQ, IFMA, CD, BW and VL, of EBX in leaf 7."""
NEEDS = pytest.mark.skipif(
    not (shutil.which("cc") and shutil.which("objdump")), reason="needs cc and objdump"
)


def said(program: Path, **variables: str) -> list[list[int]]:
    done = subprocess.run([program], env=variables, check=True, capture_output=True, text=True)
    return [[int(number, 16) for number in line.split()] for line in done.stdout.splitlines()]


@NEEDS
def test_a_held_program_sees_no_wider_registers_than_those_of_avx2(tmp_path: Path) -> None:
    program = tmp_path / "probe"
    (tmp_path / "probe.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O2", tmp_path / "probe.c", "-o", program], check=True)
    before = said(program)
    hold(program)
    assert CPUID not in program.read_bytes()
    after = said(program, LD_PRELOAD=str(make_preloaded(tmp_path)))
    assert after[:7] == before[:7]
    assert after[7][0] == before[7][0] & ~WIDER
    # AVX2 stays.
    assert after[7][0] & (1 << 5) == before[7][0] & (1 << 5)
