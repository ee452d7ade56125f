"""The program that makes whole episodes: claims an index, plays it from (root, index), hands the result on.

One worker plays `rows` environments at once, so that a policy is asked with batches. Which episode is played where
does not matter: everything random in episode i comes from (root, i), and where its steps end does not depend on its
neighbours.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any

from treadle import seeding
from treadle.errors import BadAction, UsageError
from treadle.program.base import Description, Program
from treadle.program.gym_env import EnvRecipe, import_package, portable_spec
from treadle.program.policies import build_actor
from treadle.sample.buffer import EpisodeBuffer
from treadle.sample.episode import Episode
from treadle.spaces import Layout

LONG = 100_000  # steps of one episode without a time limit, after which a warning is given
END = -1  # a ticket: there will be no more
BATCH, BATCH_SECONDS = 16, 0.05  # small episodes travel together, but none waits long


class Globals(Enum):
    """What to do with the process's global random generators (random, numpy, torch) at an episode's start."""

    SEED = "seed"  # the worker's own process: seed them, for envs and policies that use them
    SWAP = "swap"  # the caller's own thread: the same, but the caller gets its own back
    LEAVE = "leave"  # threads share them with everybody: hands off


@dataclass(frozen=True)
class RolloutOrder:
    """What a worker is asked to do. `batch`: results that may travel together; 1 after a death, so that the loss of
    a worker loses only what it was playing."""

    root: int
    batch: int = BATCH


@dataclass(frozen=True)
class RolloutRecipe:
    """How to set a rollout worker up.

    Attributes:
        env: the environment.
        policy: see `treadle.program.policies`.
        rows: environments a worker.
        max_steps: longest episode (truncated there), None: as the environment says.
        infos: keep the step infos?
        sink: None: episodes are sent to the caller. Else called once in the worker, with (worker slot, observation
            space, action space); the object returned has `add(episode) -> result to send instead`, and `close()`.
        fresh_env: build a new environment for each episode.
    """

    env: EnvRecipe
    policy: Any = None
    rows: int = 1
    max_steps: int | None = None
    infos: bool = True
    sink: Callable[[int, Any, Any], Any] | None = None
    fresh_env: bool = False


@dataclass
class Shares:
    """Seconds that a worker has spent, by kind."""

    step: float = 0.0
    policy: float = 0.0
    encode: float = 0.0
    reset: float = 0.0


class RolloutSlot(Program):
    def __init__(self, recipe: RolloutRecipe, slot: int, globals: Globals = Globals.SEED) -> None:
        self._recipe, self._globals = recipe, globals
        _without_banner(recipe.env)
        self._envs = [recipe.env.build() for _ in range(recipe.rows)]
        env = self._envs[0]
        self._observations, self._actions = Layout.of(env.observation_space), Layout.of(env.action_space)
        self._actor = build_actor(recipe.policy, env.observation_space, env.action_space, recipe.rows)
        self._sink = recipe.sink(slot, env.observation_space, env.action_space) if recipe.sink else None
        self._buffers = [
            EpisodeBuffer(self._observations, self._actions, infos=recipe.infos) for _ in range(recipe.rows)
        ]
        self.shares = Shares()

    def describe(self) -> Description:
        env = self._envs[0]
        return Description(env.observation_space, env.action_space, metadata={"spec": portable_spec(env)})

    def stream(self, order: RolloutOrder, control: Any) -> Iterator[list[tuple[int, int, Any]]]:
        """Yield lists of (index, length, result) until there are no more tickets."""
        playing = self._play(order, control)
        if self._globals is not Globals.SWAP:
            yield from playing
            return
        inside: seeding.GlobalState | None = None
        while True:  # the caller has its own generators back whenever it has the word
            with seeding.keep_globals():
                if inside is not None:
                    inside.restore()
                ready = next(playing, None)
                inside = seeding.GlobalState()
            if ready is None:
                return
            yield ready

    def _play(self, order: RolloutOrder, control: Any) -> Iterator[list[tuple[int, int, Any]]]:
        recipe, shares = self._recipe, self.shares
        rows = recipe.rows
        steps: list[Any] = [env.step for env in self._envs]
        buffers, actor, sink = self._buffers, self._actor, self._sink
        now: list[Any] = [None] * rows  # the observation each row acts on; None: no episode
        most = recipe.max_steps or self._endless()
        ready: list[tuple[int, int, Any]] = []
        since = perf_counter()
        more = True
        copies = sink is None and self._globals is not Globals.SEED  # pickling copies by itself
        while True:
            for row in range(rows):
                while more and now[row] is None:
                    if control.stopped():
                        return
                    index = control.claim(wait=False)
                    if index is None:
                        if ready:
                            yield ready
                            ready, since = [], perf_counter()
                        if any(o is not None for o in now):
                            break
                        index = control.claim(wait=True)
                        if index is None:  # nobody could bring one: let the caller do so
                            yield []
                            continue
                    if index == END:
                        more = False
                        break
                    now[row] = self._begin(row, index, order.root)
                    steps[row] = self._envs[row].step
            if all(o is None for o in now):
                if not more:
                    break
                continue
            before = perf_counter()
            try:
                actions, policy_infos = actor.act(now)
            except Exception as error:  # noqa: BLE001 - whatever a policy raises is placed and raised again
                raise self._blamed(error, now) from None
            after = perf_counter()
            shares.policy += after - before
            for row in range(rows):
                if now[row] is None:
                    continue
                buffer, action = buffers[row], actions[row]
                try:
                    result = steps[row](action)
                    buffer.step(action, None if policy_infos is None else policy_infos[row], result)
                except Exception as error:  # noqa: BLE001 - raised on, with its place
                    raise _placed(error, "step", buffer, action) from None
                now[row] = result[0]
                if result[2] or result[3] or buffer.length >= most:
                    if buffer.length >= most and recipe.max_steps is None and not (result[2] or result[3]):
                        most = self._warn_endless(buffer)
                        continue
                    truncated = bool(result[3]) or (buffer.length >= most and not result[2])
                    now[row] = None
                    encode = perf_counter()
                    shares.step += encode - after
                    episode = buffer.episode(bool(result[2]), truncated, copy=copies)
                    ready.append((buffer.index, buffer.length, episode if sink is None else self._store(episode)))
                    after = perf_counter()
                    shares.encode += after - encode
                    # an episode shares its buffer's memory: it must be on its way before the buffer is used again
                    if sink is None or len(ready) >= order.batch or after - since > BATCH_SECONDS:
                        yield ready
                        ready, since = [], perf_counter()
                        after = perf_counter()
            shares.step += perf_counter() - after
            if control.stopped():
                return
        if ready:
            yield ready

    def _begin(self, row: int, index: int, root: int) -> Any:
        start = perf_counter()
        seed = seeding.episode_env_seed(root, index)
        policy_seed = seeding.episode_policy_seed(root, index)
        buffer = self._buffers[row]
        buffer.index, buffer.seed, buffer.length = index, seed, 0
        try:
            if self._recipe.fresh_env:
                self._envs[row].close()
                self._envs[row] = self._recipe.env.build()
            if self._globals is not Globals.LEAVE:
                seeding.seed_globals(policy_seed)
            observation, info = self._envs[row].reset(seed=seed)
            self._actor.start(row, policy_seed)
            buffer.begin(index, seed, observation, info)
        except Exception as error:  # noqa: BLE001 - raised on, with its place
            raise _placed(error, "reset", buffer, None) from None
        self.shares.reset += perf_counter() - start
        return observation

    def _store(self, episode: Episode) -> Any:
        try:
            return self._sink.add(episode)
        except Exception as error:
            error.treadle_phase = "write"  # type: ignore[attr-defined]
            error.treadle_where = {"episode": episode.index, "seed": episode.seed}  # type: ignore[attr-defined]
            raise

    def _blamed(self, error: Exception, now: list[Any]) -> Exception:
        """A policy's error, placed in the episode of the row it names, or of the first row that is played."""
        row = getattr(error.__context__, "row", None)  # of a spaces.Mismatch
        if row is None or now[row] is None:
            row = next(row for row, observation in enumerate(now) if observation is not None)
        if isinstance(error, BadAction):  # as plain text: its path is the action's, not an observation's
            error = UsageError(str(error))
        return _placed(error, "policy", self._buffers[row], None)

    def _endless(self) -> int:
        """After how many steps a warning is due: never for an environment that has a limit of its own."""
        spec = self._envs[0].spec
        return LONG if spec is None or spec.max_episode_steps is None else 1 << 62

    def _warn_endless(self, buffer: EpisodeBuffer) -> int:
        message = f"episode {buffer.index} has taken {buffer.length:,} steps and the environment has no time limit; "
        warnings.warn(message + "max_episode_steps (--max-episode-steps) would cut it", stacklevel=2)
        return 1 << 62

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self, name)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._actor.close()
        for env in self._envs:
            env.close()


def _placed(error: Exception, phase: str, buffer: EpisodeBuffer, action: Any) -> Exception:
    """The same exception, knowing which episode it happened in (the server reads these when it reports it)."""
    from treadle.pool.serve import portable

    error.treadle_phase = phase  # type: ignore[attr-defined]
    where: dict[str, Any] = {"episode": buffer.index, "seed": buffer.seed}
    if phase != "reset":
        where["step"] = buffer.length + 1
    if phase == "step":
        where["last_action"] = portable(action)
    error.treadle_where = where  # type: ignore[attr-defined]
    return error


def _without_banner(env: EnvRecipe) -> None:
    """ALE greets every new environment with two lines on stderr; from here on it says warnings and errors only."""
    if isinstance(env.env, str):
        import_package(env.env)
    ale: Any = sys.modules.get("ale_py")
    if ale is not None:
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Warning)
