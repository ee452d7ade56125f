"""What the kernel says of the processors."""

import os
import time
from pathlib import Path

import pytest

from treadle.pool import processor

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


def test_the_processors_have_been_busy() -> None:
    before = processor.used()
    ran = processor.times_of(os.getpid())[0]
    until = time.process_time() + 0.4  # seconds; each processor rounds down to ticks of 0.01
    while time.process_time() < until:
        pass
    after = processor.used()
    assert before is not None
    assert after is not None
    assert (after - before) * len(os.sched_getaffinity(0)) >= 0.3
    assert processor.times_of(os.getpid())[0] - ran >= 0.3


def test_nobody_is_there() -> None:
    assert processor.times_of(2**22 + 1) == (0, 0)
