"""One environment, built here, and what was done to it done again.

Nothing of the pool is in between: the environment's frames are the innermost of the traceback, and a debugger stops in
them. What only a process of its own can show (a death, a hang that holds the interpreter) is played in one: see
`child.py`.
"""

from __future__ import annotations

import pdb
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import UsageError
from treadle.program.gym_env import EnvRecipe, close_env
from treadle.program.policies import Actor, build_actor
from treadle.replays.checks import Checks
from treadle.replays.result import Replay, own_frames, stack_of
from treadle.repro import Repro
from treadle.sample.named import Named, env_of
from treadle.spaces import Layout


class StillRunning(BaseException):
    """Ends a step that takes longer than the limit, where it is. It is no Exception: environments catch those."""


class Left(BaseException):
    """A person has left the debugger within a step."""


@contextmanager
def limited(seconds: float | None) -> Iterator[Callable[[], None]]:
    """In the block, whatever takes longer than so many seconds after the last call of what is given is ended by
    `StillRunning`. Only Python code is, and only in the main thread."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def ring(*_: Any) -> None:
        raise StillRunning(f"no step came to its end for {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def recipe_from(repro: Repro, env: Any, trust: bool, render: bool = False) -> EnvRecipe:
    """How the environment is built; `env`: given in the place of the recorded one."""
    kwargs = dict(repro.get("kwargs", trust) or {})
    if render:
        kwargs["render_mode"] = "rgb_array"
    found = [repro.get(f"wrapper {i}", trust) for i in range(repro.about.get("wrappers", 0))]
    wrappers = tuple(Named(each) if isinstance(each, str) else each for each in found)
    built = env_of(repro.get("env", trust) if env is None else env)
    return EnvRecipe(built, kwargs, wrappers, tuple(repro.about.get("imports", ())))


def actions_of(repro: Repro, space: Any) -> list[Any] | None:
    """The recorded actions, as the environment was given them; None: there are none."""
    layout = Layout.of(space)
    arrays = [repro.arrays.get(f"action.{i}") for i in range(len(layout.leaves))]
    if not arrays or any(array is None for array in arrays):
        return None
    count = len(arrays[0])  # type: ignore[arg-type]
    for leaf, array in zip(layout.leaves, arrays, strict=True):
        if array is not None and array.shape[1:] != leaf.shape:
            raise UsageError(f"the recorded actions do not fit {space}: give the environment that was played with env")
    return layout.batch_reader(arrays, 0, count)(None)


class Player:
    """Args:
    repro: what is played.
    env: the environment, built.
    step: stop after this step; None: at the end.
    debug: stop in a debugger there, before the step is made.
    tick: called before each reset and step, with its number: 0 for resets.
    frames: where pictures go; None: none are made.
    """

    def __init__(
        self,
        repro: Repro,
        env: Any,
        *,
        step: int | None = None,
        debug: bool = False,
        tick: Callable[[int], None] = lambda number: None,
        frames: list[np.ndarray] | None = None,
    ) -> None:
        self.env, self.result, self._tick, self._frames = env, Replay(repro), tick, frames
        self._until, self._debug = step, debug
        self.checks = Checks(repro, env.observation_space)
        self.result.compared = self.checks.compared

    @property
    def enough(self) -> bool:
        """Has it come to the step that was asked for?"""
        self.result.stopped = self._until is not None and self.result.steps >= self._until
        return self.result.stopped

    def reset(self, **given: Any) -> Any:
        """The observation of a reset."""
        self._tick(0)
        observation, _ = self.env.reset(**given)
        self._seen(observation)
        return observation

    def step(self, action: Any) -> tuple[Any, bool]:
        """One step: the observation, and has the episode ended?"""
        self.result.steps += 1
        number = self.result.steps
        self._tick(number)
        if self._debug and number == self._until:
            answer = _stepped_into(self.env, action)
        else:
            answer = self.env.step(action)
        observation, reward, terminated, truncated, _ = answer
        self.result.total_reward += float(np.sum(reward))
        self.checks.step(number, reward, terminated, truncated)
        self._seen(observation)
        return observation, bool(terminated or truncated)

    def _seen(self, observation: Any) -> None:
        self.result.observation = observation
        self.checks.observation(self.result.steps, observation)
        if self._frames is not None:
            self._frames.append(np.asarray(self.env.render()))

    def run(self, script: Callable[[Player], None], pdb: bool) -> Replay:
        """Play; what is raised is the result's, and a debugger stands where it was raised."""
        try:
            script(self)
        except Left:
            self.result.stopped = True
        except (Exception, SystemExit, StillRunning) as error:  # noqa: BLE001 - it is what is to be seen
            signal.setitimer(signal.ITIMER_REAL, 0.0)  # a person may take as long as they like
            self.result.error, self.result.stack = error, stack_of(error)
            if isinstance(error, StillRunning):
                self.result.died = str(error)
            if pdb:
                print(self.result.stack, end="")
                _post_mortem(error)
        self.result.difference = self.checks.difference
        return self.result


def _post_mortem(error: BaseException) -> None:
    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    debugger.interaction(None, own_frames(error.__traceback__, users=True))


def _stepped_into(env: Any, action: Any) -> Any:
    """`env.step(action)`, stopped at the first line of the innermost environment's own step."""
    code = getattr(type(getattr(env, "unwrapped", env)).step, "__code__", None)
    debugger = pdb.Pdb(nosigint=True, readrc=False)
    if code is not None and env is not getattr(env, "unwrapped", env):
        debugger.rcLines = [f"tbreak {code.co_filename}:{code.co_firstlineno + 1}", "continue"]
    answer = debugger.runcall(env.step, action)
    if answer is None:
        raise Left
    return answer


def script_of_episode(repro: Repro, env: Any, policy: Any, trust: bool) -> Callable[[Player], None]:
    """An episode that was made by its index: its seeds, and its recorded actions or its policy (see `replay`)."""
    about = repro.about
    most = about.get("max_steps") or 1 << 62
    recorded = None if policy is not None else actions_of(repro, env.action_space)
    options = repro.get("options", trust)
    actor: Actor | None = None
    if recorded is None or about.get("failed", {}).get("phase") == "policy":
        chosen = repro.get("policy", trust) if policy in (None, True) else policy
        actor = build_actor(chosen, env.observation_space, env.action_space)

    def script(player: Player) -> None:
        seeding.seed_globals(about["policy_seed"])
        observation = player.reset(seed=about["seed"], **({} if options is None else {"options": options}))
        if actor is not None:
            actor.start(0, about["policy_seed"])
        ended, result = False, player.result
        while not ended and result.steps < most and not player.enough:
            action = None
            if actor is not None:  # where it is the policy that raised, it has to see all that was before
                result.asking = True
                action, _ = actor.act_alone(observation)
                result.asking = False
            if recorded is not None and result.steps < len(recorded):
                action = recorded[result.steps]
            elif actor is None:
                break
            observation, ended = player.step(action)

    return script


def write_pictures(path: Path, frames: list[np.ndarray], env: Any) -> None:
    """A video of what was rendered."""
    from treadle.record.video import write_video

    metadata = getattr(env, "metadata", None) or {}
    write_video(path, frames, float(metadata.get("render_fps", 30)))


__all__ = ["Player", "StillRunning", "actions_of", "close_env", "limited", "recipe_from", "script_of_episode"]
