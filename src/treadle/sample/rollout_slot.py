"""The program that makes whole episodes: claims an index, plays it from (root, index), hands the result on.

One worker plays `rows` environments at once, so that a policy is asked with batches. Which episode is played where
does not matter: everything random in episode i comes from (root, i), and where its steps end does not depend on its
neighbours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import BadAction, UsageError
from treadle.pool.arena import closed_descriptors
from treadle.pool.loan import Lender
from treadle.pool.original import attributes_of
from treadle.program.base import Description, Program
from treadle.program.gym_env import EnvRecipe, close_env, portable_spec
from treadle.program.ids import import_package
from treadle.program.policies import build_actor
from treadle.sample import cores
from treadle.sample.buffer import MEET, EpisodeBuffer
from treadle.sample.contract import BadStep, first_observation
from treadle.sample.episode import Episode
from treadle.seeding import SeedStream
from treadle.spaces import Layout, Mismatch

LONG = 100_000  # steps of one episode without a time limit, after which a warning is given
END = -1  # a ticket: there will be no more
BATCH, BATCH_SECONDS = 16, 0.05  # stored episodes are told of together, but none waits long


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
class Remark:
    """What a worker wants a person to know while it goes on; travels as a result of length 0.

    Attributes:
        kind: remarks of one kind are made once a run.
        text: one line, which names the episode.
    """

    kind: str
    text: str


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
        with seeding.keep_globals() if globals is Globals.SWAP else nullcontext():  # building may seed them, too
            self._build(recipe, slot)
        self.shares = Shares()
        self._root: int | None = None
        self._said: set[str] = set()  # kinds of remarks made

    def _build(self, recipe: RolloutRecipe, slot: int) -> None:
        _without_banner(recipe.env)
        self._envs = [recipe.env.build() for _ in range(recipe.rows)]
        env = self._envs[0]
        self._observations, self._actions = Layout.of(env.observation_space), Layout.of(env.action_space)
        self._actor = build_actor(recipe.policy, env.observation_space, env.action_space, recipe.rows)
        self._sink = recipe.sink(slot, env.observation_space, env.action_space) if recipe.sink else None
        self._buffers = [
            EpisodeBuffer(self._observations, self._actions, infos=recipe.infos) for _ in range(recipe.rows)
        ]
        if self._globals is Globals.SEED:
            cores.take_one()

    def lend(self, lender: Lender) -> None:
        if self._sink is None:  # else episodes are not sent
            for buffer in self._buffers:
                buffer.lend(lender)

    def describe(self) -> Description:
        env = self._envs[0]
        return Description(env.observation_space, env.action_space, metadata={"spec": portable_spec(env)})

    def stream(self, order: RolloutOrder, control: Any) -> Iterator[list[tuple[int, int, Any]]]:
        """Yield lists of (index, length, result) until there are no more tickets; among them (index, 0, Remark)."""
        playing = self._play(order, control)
        yield from seeding.OwnGlobals().run(playing) if self._globals is Globals.SWAP else playing

    def _play(self, order: RolloutOrder, control: Any) -> Iterator[list[tuple[int, int, Any]]]:
        shares, act, buffers = self.shares, self._actor.act, self._buffers
        rows = range(self._recipe.rows)
        self._alone = (self._actor.act_alone, control.stopped) if len(rows) == 1 else None
        self._most = self._recipe.max_steps or self._endless()
        playing: list[Any] = [None] * len(rows)  # each row's episode, a coroutine
        now: list[Any] = [None] * len(rows)  # the observation each row acts on; None: no episode
        ready: list[tuple[int, int, Any]] = []
        since = mark = perf_counter()
        open_rows, more, beat = 0, True, 0
        clocked = MEET if self._alone is None else 1  # one call in MEET is timed; if alone, first ones and one in MEET
        while True:
            while more and open_rows < len(rows):
                index = self._claimed(control, wait=False)
                if index is None and ready:  # let the caller have what there is before waiting for it
                    yield ready
                    ready, since = [], perf_counter()
                if index is None and open_rows:
                    break
                if index is None:
                    index = self._claimed(control, wait=True)
                if control.stopped():
                    return
                if index is None:  # nobody could bring one while we wait: let the caller do so
                    yield []
                elif index == END:
                    more = False
                else:
                    row = playing.index(None)
                    if self._alone is not None:
                        control.resets(index)
                    now[row], playing[row] = self._begin(row, index, order.root)
                    if self._alone is not None:
                        control.begins()
                    open_rows += 1
                mark = perf_counter()
            if not open_rows:
                break
            beat += 1
            try:
                if beat % clocked:
                    actions, policy_infos = act(now)
                else:
                    before = perf_counter()
                    actions, policy_infos = act(now)
                    taken = (perf_counter() - before) * (MEET if self._alone is None or buffers[0].length else 1)
                    shares.policy += taken
                    shares.step -= taken
            except BaseException as error:  # noqa: BLE001 - whatever it raises, sys.exit too, is placed and raised again
                raise self._blamed(error, now) from None
            for row in rows:
                episode = playing[row]
                if episode is None:
                    continue
                try:
                    now[row] = episode.send((actions[row], None if policy_infos is None else policy_infos[row]))
                except StopIteration as end:
                    ended = self._ended(row, *end.value)
                    if ended is None:  # it has only grown suspiciously long
                        now[row], playing[row] = self._going_on(row)
                        yield [*ready, self._remark_endless(buffers[row])]
                        ready, since = [], perf_counter()
                        continue
                    control.ends()
                    now[row] = playing[row] = None
                    open_rows -= 1
                    finished = perf_counter()
                    shares.step += finished - mark
                    ready += ended
                    mark = perf_counter()
                    # an episode shares its buffer's memory: it must be on its way before the buffer is used again
                    if self._sink is None or len(ready) >= order.batch or mark - since > BATCH_SECONDS:
                        yield ready
                        ready, since = [], perf_counter()
                        mark = since
                except BaseException as error:  # noqa: BLE001 - raised on, with its place
                    buffer = buffers[row]
                    if buffer.asking:
                        raise self._blamed(error, now) from None
                    raise _placed(error, "step", buffer, buffer.action) from None
            if control.stopped():
                return
        if ready:
            yield ready

    def _claimed(self, control: Any, wait: bool) -> int | None:
        """The next ticket, as `StreamControl.claim` says."""
        try:
            ticket: int | None = control.claim(wait)
        except OSError as error:
            latest = max(self._buffers, key=lambda buffer: buffer.index)
            raise _placed(closed_descriptors(error) or error, "stream", latest, None) from None
        return ticket

    def _ended(self, row: int, terminated: bool, truncated: bool) -> list[tuple[int, int, Any]] | None:
        """What becomes of a row whose episode has stopped: (index, length, result), and perhaps a remark; None: it goes
        on after all."""
        buffer, recipe = self._buffers[row], self._recipe
        if not (terminated or truncated):
            if recipe.max_steps is None:
                return None
            truncated = True
        start = perf_counter()
        copies = self._sink is None and self._globals is not Globals.SEED  # pickling copies by itself
        try:
            episode = buffer.episode(terminated, truncated, copy=copies)
        except BadStep as error:
            raise _placed(error, "step", buffer, None) from None
        result = episode if self._sink is None else self._store(episode)
        taken = perf_counter() - start
        self.shares.encode += taken
        self.shares.step -= taken
        ended: list[tuple[int, int, Any]] = [(buffer.index, buffer.length, result)]
        if "nan" not in self._said and math.isnan(episode.total_reward) and np.isnan(episode.rewards).any():
            self._said.add("nan")
            step = int(np.isnan(episode.rewards).argmax()) + 1
            text = (
                f"episode {buffer.index} (seed {buffer.seed}) has a reward that is not a number (NaN), in step {step}"
            )
            ended.append((buffer.index, 0, Remark("nan", text)))
        return ended

    def _begin(self, row: int, index: int, root: int) -> tuple[Any, Any]:
        """Reset a row's environment for an episode; (first observation, the episode's coroutine)."""
        start = perf_counter()
        if root != self._root:
            self._root, self._env_seeds, self._policy_seeds = root, SeedStream(root, 0), SeedStream(root, 1)
        seed, policy_seed = self._env_seeds(index), self._policy_seeds(index)
        buffer = self._buffers[row]
        buffer.index, buffer.seed, buffer.length = index, seed, 0
        try:
            if self._recipe.fresh_env:
                close_env(self._envs[row])
                self._envs[row] = self._recipe.env.build()
            if self._globals is not Globals.LEAVE:
                seeding.seed_globals(policy_seed)
            observation, info = first_observation(self._envs[row].reset(seed=seed))
            self._actor.start(row, policy_seed)
            buffer.begin(index, seed, observation, info)
        except BaseException as error:  # noqa: BLE001 - raised on, with its place
            raise _placed(error, "reset", buffer, None) from None
        playing = buffer.play(self._envs[row].step, observation, self._most, self._alone)
        next(playing)
        self.shares.reset += perf_counter() - start
        return observation, playing

    def _going_on(self, row: int) -> tuple[Any, Any]:
        """An episode that reached the length that deserves a warning: the same one, without a limit."""
        self._most = 1 << 62
        last = self._buffers[row].last
        playing = self._buffers[row].play(self._envs[row].step, last, self._most, self._alone)
        return next(playing), playing

    def _store(self, episode: Episode) -> Any:
        assert self._sink is not None
        try:
            return self._sink.add(episode)
        except Exception as error:
            where = {"episode": episode.index, "seed": episode.seed}
            told = closed_descriptors(error)
            attributes_of(error if told is None else told).update(treadle_phase="write", treadle_where=where)
            if told is not None:
                raise told from error
            raise

    def _blamed(self, error: BaseException, now: list[Any]) -> BaseException:
        """A policy's error, placed in the episode of the row it names, or of the first row that is played."""
        row = attributes_of(error).get("treadle_row")
        context = vars(BaseException)["__context__"].__get__(error)  # its class may make more of reading it
        if row is None and type(context) is Mismatch:
            row = context.row
        if row is None or now[row] is None:
            row = next(row for row, observation in enumerate(now) if observation is not None)
        if issubclass(type(error), BadAction):  # as plain text: its path is the action's, not an observation's
            error = UsageError(str(error))
        return _placed(error, "policy", self._buffers[row], None)

    def _endless(self) -> int:
        """After how many steps a warning is due: never for an environment that has a limit of its own."""
        spec = getattr(self._envs[0], "spec", None)
        return LONG if spec is None or spec.max_episode_steps is None else 1 << 62

    def _remark_endless(self, buffer: EpisodeBuffer) -> tuple[int, int, Remark]:
        text = f"episode {buffer.index} has taken {buffer.length:,} steps and the environment has no time limit; "
        return buffer.index, 0, Remark("endless", text + "max_episode_steps (--max-episode-steps) would cut it")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self, name)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._actor.close()
        for env in self._envs:
            close_env(env)


def _placed(error: BaseException, phase: str, buffer: EpisodeBuffer, action: Any) -> BaseException:
    """The same exception, knowing which episode it happened in (the server reads these when it reports it)."""
    from treadle.pool.serve import portable

    where: dict[str, Any] = {"episode": buffer.index, "seed": buffer.seed}
    if phase not in ("reset", "stream"):
        where["step"] = buffer.length + 1
    if type(error) is BadStep and error.step is not None:
        where["step"] = error.step
    elif phase == "step":
        where["last_action"] = portable(action)
    attributes_of(error).update(treadle_phase=phase, treadle_where=where)
    return error


def _without_banner(env: EnvRecipe) -> None:
    """ALE greets every new environment with two lines on stderr; from here on it says warnings and errors only."""
    if isinstance(env.env, str):
        import_package(env.env)
    ale: Any = sys.modules.get("ale_py")
    if ale is not None:
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Warning)
