"""A collection whose worker dies names the episode, the step and the line, though the worker cannot tell any more."""

import ctypes
import logging
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from treadle import collect
from treadle.sample.failed import CollectionFailed
from zoo.faults import Outcome, Sound


class Dies(Sound):
    """Dies in the step number `at` of its life; an episode has `LONG` steps."""

    def __init__(self, at: int, how: str, once: str = "") -> None:
        super().__init__(at)
        self.how, self.once = how, once

    def at_step(self, sound: Outcome) -> None:
        if self.once:
            if Path(self.once).exists():
                return
            Path(self.once).touch()
        self.die()

    def die(self) -> None:
        if self.how == "segfault":
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.at == -1 and self.resets == 1:
            self.die()
        return super().reset(seed=seed)


LONG = 20
LINE = r"at test_deaths_placed\.py:\d+"


@pytest.mark.parametrize("at", [1, 2, 3, 16, 17, 18, LONG, LONG + 1, 2 * LONG + 11, 5 * LONG + 16])
def test_the_step_is_counted_from_the_episodes_begin(at: int) -> None:
    """Whichever of an episode's steps the policy is asked for from outside."""
    with pytest.raises(CollectionFailed) as caught:
        list(collect(partial(Dies, at, "kill"), episodes=9, workers=1, on_failure="raise"))
    episode, step = divmod(at - 1, LONG)
    where = caught.value.where
    assert (where.phase, where.episode, where.step) == ("step", episode, step + 1)
    assert f"episode {episode} (seed {where.seed}, slot 0), step {step + 1}: the worker was ended by SIG" in str(
        caught.value
    )


def test_a_segfault_names_its_line() -> None:
    with pytest.raises(CollectionFailed) as caught:
        list(collect(partial(Dies, LONG + 7, "segfault"), episodes=9, workers=1, on_failure="raise"))
    said = rf"^episode 1 \(seed \d+, slot 0\), step 7: the worker was ended by SIGSEGV, {LINE}$"
    assert re.search(said, str(caught.value))


def test_a_death_in_a_reset_is_one() -> None:
    with pytest.raises(CollectionFailed, match=r"^episode 2 \(seed \d+, slot 0\), reset: .*SIGKILL") as caught:
        list(collect(partial(Dies, -1, "kill"), episodes=9, workers=1, on_failure="raise"))
    assert (caught.value.where.phase, caught.value.where.step) == ("reset", None)


def test_what_is_made_again_is_placed_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    once = str(tmp_path / "once")
    with caplog.at_level(logging.WARNING, "treadle"):
        episodes = list(collect(partial(Dies, 2 * LONG + 7, "segfault", once), episodes=6, workers=1))
    assert [len(episode) for episode in episodes] == [LONG] * 6
    (line,) = [record.getMessage() for record in caplog.records]
    assert re.search(rf"is replaced: the worker was ended by SIGSEGV in step 7 of episode 2, {LINE}; made again", line)


def test_with_several_environments_the_step_and_its_line_are_known() -> None:
    match = rf"^episode 0 \(seed \d+, slot 0\), step 7: the worker was ended by SIGSEGV, {LINE}\n"
    with pytest.raises(CollectionFailed, match=match) as caught:
        list(collect(partial(Dies, 7, "segfault"), episodes=9, workers=1, num_envs=2, on_failure="raise"))
    assert caught.value.where.step == 7
