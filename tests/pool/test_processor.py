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
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    after = processor.used()
    assert before is not None
    assert after is not None
    assert (after - before) * len(os.sched_getaffinity(0)) >= 0.08
    assert processor.times_of(os.getpid())[0] - ran >= 0.09


def test_nobody_is_there() -> None:
    assert processor.times_of(2**22 + 1) == (0, 0)
