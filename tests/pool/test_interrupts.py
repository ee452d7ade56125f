"""Ctrl-C in the middle of a step, and then carry on with the right data."""

import signal
import time
from typing import Any

import numpy as np
import pytest
from kit import ACTIONS, warm, with_fault
from scripts import Script

from treadle.errors import UsageError
from treadle.pool.pool import Pool
from treadle.testing.faults import Sound


def test_an_interrupt_in_the_middle_of_a_step() -> None:
    """A real SIGINT. The step is finished and dropped, in every slot, and the data after it is right."""
    script = Script("""
        class Tells(faults.SlowOnce):
            def at_step(self, sound):
                say(slow=True)
                super().at_step(sound)
        pool = Pool([gym_env(Sound)] * 3 + [gym_env(Tells, kwargs=dict(at=3, seconds=0.4))], workers=2)
        pool.reset(seeds=range(4))
        for _ in range(2):
            pool.step([0, 1, 2, 3])
        try:
            pool.step([0, 1, 2, 3])
            say(interrupted=False)
        except KeyboardInterrupt:
            say(interrupted=True)
        for _ in range(3):
            batch = pool.step([3, 2, 1, 0])
            say(rows=batch.observations.tolist(), rewards=batch.rewards.tolist())
        pool.close()
    """)
    assert script.hear() == {"slow": True}
    script.process.send_signal(signal.SIGINT)
    assert script.hear() == {"interrupted": True}
    for t in (4, 5, 6):
        expected = [[slot, 0, t, 3 - slot] for slot in range(4)]
        assert script.hear() == {"rows": expected, "rewards": [t] * 4}
    assert script.end() == (0, "")


@pytest.mark.parametrize("inline", [0, 2])
def test_interrupts_at_random_moments(inline: int) -> None:
    """All slots have taken a step or none has; only a slot of the caller's own can need a reset, and then says so."""
    steps = interrupts = 0
    refused: list[str] = []
    with Pool(with_fault(Sound, n=4), workers=2, inline=inline) as pool:
        warm(pool, 0)
        previous = signal.signal(signal.SIGALRM, raise_interrupt)
        try:
            rng = np.random.default_rng(0)
            for _ in range(1500):
                try:  # the alarm goes off once, in a step or after all of them
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, 1e-3)))
                    try:
                        for _ in range(10):
                            check_together(pool.step(ACTIONS))
                            steps += 1
                    except UsageError as error:
                        refused.append(str(error))
                    while signal.getitimer(signal.ITIMER_REAL)[0]:
                        time.sleep(0.0005)
                    armed.clear()
                except Interrupt:
                    interrupts += 1
                if refused:
                    assert inline, "without inline slots every step can be finished"
                    refused.clear()
                    check_together(pool.reset(seeds=range(7, 7 + pool.n)))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        check_together(pool.reset(seeds=range(7, 7 + pool.n)))
        assert pool.step(ACTIONS).rewards.tolist() == [1] * 4
    assert interrupts > 500
    assert steps > 500


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_interrupts_at_random_moments_of_a_pools_life(backend: str) -> None:
    """In its construction, mostly. The fixture looks for processes, descriptors and threads that are left behind."""
    rng = np.random.default_rng(0)
    interrupts = 0
    previous = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        for _ in range(30):
            pool = None
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-4, 0.08)))
                pool = Pool(with_fault(Sound), workers=2, backend=backend, close_timeout=1.0)
                while signal.getitimer(signal.ITIMER_REAL)[0]:
                    pool.reset()
                    pool.step(ACTIONS)
                armed.clear()
            except Interrupt:
                interrupts += 1
            if pool is not None:
                pool.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupts > 20


class Interrupt(KeyboardInterrupt):
    pass


armed: list[bool] = []  # empty: an alarm that went off at the very end is answered too late, and means nothing


def raise_interrupt(*_: Any) -> None:
    if armed:
        armed.clear()
        raise Interrupt


def check_together(batch: Any) -> None:
    assert len(set(batch.observations[:, 2].tolist())) == 1, batch.observations
    assert batch.observations[:, 0].tolist() == [7, 8, 9, 10]
