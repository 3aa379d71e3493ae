"""Bits that flip in the memory of processes that run."""

import os
import subprocess
import sys

from e2e.benchmarks.bit_flips import SAMPLE_BYTES, flip_bit

HOLDER = """
import sys
sample = bytearray(sys.stdin.buffer.read(int(sys.argv[1])))
others = bytes(sample[:-1])
print("held", flush=True)
sys.stdin.buffer.read(1)
print(sample.hex(), others.hex())
"""


def test_one_bit_of_a_sample_flips_in_the_memory_of_another_process() -> None:
    sample = os.urandom(SAMPLE_BYTES - 1) + b"!"  # its end is not the zero that follows `others` in memory
    command = [sys.executable, "-c", HOLDER, str(SAMPLE_BYTES)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(sample)
        process.stdin.flush()
        assert process.stdout.readline() == b"held\n"

        places = flip_bit(process.pid, sample)
        process.stdin.write(b"\n")
        process.stdin.flush()
        held, others = process.stdout.readline().split()

    assert places >= 1
    assert bytes.fromhex(held.decode()) == sample[:1] + bytes([sample[1] ^ 1]) + sample[2:]
    assert bytes.fromhex(others.decode()) == sample[:-1]
