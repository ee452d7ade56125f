"""The program that makes whole episodes: plays each index of an order from (root, index), hands the results on.

One worker plays `rows` environments at once, so that a policy is asked with batches. Which episode is played where
does not matter: everything random in episode i comes from (root, i), and where its steps end does not depend on its
neighbours. An order ends as soon as
there is a free environment and nothing more to begin; what the others are playing then goes on in the next order.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import deque
from collections.abc import Generator, Iterator
from time import perf_counter
from typing import Any, cast

import numpy as np

from treadle import seeding
from treadle.errors import BadAction, UsageError, attributes_of
from treadle.memory.arena import closed_by_others
from treadle.play.contract import BadStep, first_observation
from treadle.play.episode import Episode
from treadle.play.pack import ENOUGH, SMALL, Packer
from treadle.play.recipe import SKIPPED, Lost, Remark, Results, RolloutOrder, RolloutRecipe, Shares, options_of
from treadle.play.recorder import MEET, EpisodeBuffer
from treadle.play.slot import EpisodeSlot, Globals
from treadle.program.base import Description
from treadle.program.gym_env import EnvRecipe, check_reset, close_env, portable_spec
from treadle.program.ids import import_package
from treadle.program.policies import build_actor
from treadle.program.suite import Suite
from treadle.spaces import Layout, Mismatch
from treadle.wire.messages import Raised

LONG = 100_000  # steps of one episode without a time limit, after which a warning is given


class RolloutSlot(EpisodeSlot):
    def __init__(self, recipe: RolloutRecipe, slot: int, globals: Globals = Globals.SEED) -> None:
        self._recipe, self._slot = recipe, slot
        super().__init__(globals)
        self.shares = Shares()
        self._latest = 0  # the row whose episode was begun last
        self._playing: list[Any] = [None] * recipe.rows  # each row's episode, a coroutine
        self._now: list[Any] = [None] * recipe.rows  # the observation each row acts on; None: no episode
        self._beat = 0  # how often all rows together were given their actions
        self._said: set[str] = set()  # kinds of remarks made
        self._ready: Results = []  # what is to be told, besides what is packed

    def _build(self) -> None:
        recipe = self._recipe
        _without_banner(recipe.env)
        self._envs = [recipe.env.build() for _ in range(recipe.rows)]
        self._begun = [0] * recipe.rows  # episodes of each row's present environment
        env = self._envs[0]
        if self._slot == 0 and isinstance(recipe.env.env, Suite):  # one for all
            cast(Any, env).check()
        check_reset(env, "seed")
        self._observations, self._actions = Layout.of(env.observation_space), Layout.of(env.action_space)
        self._actor = build_actor(recipe.policy, env.observation_space, env.action_space, recipe.rows)
        self._sink = recipe.sink(self._slot, env.observation_space, env.action_space) if recipe.sink else None
        self._buffers = [
            EpisodeBuffer(self._observations, self._actions, infos=recipe.infos) for _ in range(recipe.rows)
        ]
        self._packer = Packer(self._observations, self._actions, recipe.infos, SMALL if recipe.packs else 0)

    def describe(self) -> Description:
        env = self._envs[0]
        return Description(env.observation_space, env.action_space, metadata={"spec": portable_spec(env)})

    def _play(self, order: RolloutOrder, control: Any) -> Generator[Results, None, Results | None]:
        """Yield lists of (index, length, result); among them (index, 0, Remark) and (index, 0, Lost). What is ready is
        told before what is raised."""
        self._told()
        try:
            return (yield from self._rounds(order, control))
        except GeneratorExit:  # nobody listens
            raise
        except BaseException:
            if told := self._told():
                yield told
            raise

    def _told(self) -> Results:
        """What is to be told; from here on it is not."""
        told, packer = self._ready.copy(), self._packer
        self._ready.clear()
        return [(-1, 0, packer.pack()), *told] if packer else told

    def _rounds(self, order: RolloutOrder, control: Any) -> Generator[Results, None, Results | None]:
        shares, act, buffers = self.shares, self._actor.act, self._buffers
        playing, now, todo = self._playing, self._now, deque(order.indices)
        rows = range(self._recipe.rows)
        alone = len(rows) == 1
        self._alone = (self._actor.act_alone, control.stopped) if alone else None
        self._most = self._recipe.max_steps or self._endless()
        ready, packer = self._ready, self._packer
        since = mark = perf_counter()
        asked = 0.0  # seconds since `mark` that the policy is thought to have taken
        clocked = MEET if self._alone is None else 1  # one call in MEET is timed; if alone, first ones and one in MEET

        def settle() -> None:
            """Note how long was played since `mark`."""
            nonlocal mark, asked
            clock = perf_counter()
            shares.played(clock - mark, asked)
            mark, asked = clock, 0.0

        def tell() -> Iterator[Results]:
            nonlocal since, mark
            settle()
            yield self._told()
            since = mark = perf_counter()

        while not control.stopped():
            while todo and None in playing:
                if playing.count(None) < len(rows):  # a pause in playing
                    settle()
                index, row = todo.popleft(), playing.index(None)
                if alone:
                    control.resets(index)
                begun = self._begin_or_lose(row, index, order)
                if alone:
                    control.begins()
                if isinstance(begun, Lost):
                    ready.append((index, 0, begun))
                else:
                    now[row], playing[row] = begun
                mark = perf_counter()
            free = playing.count(None)
            if free == len(rows) or (free and order.indices):
                break
            if (ready or packer) and perf_counter() - since > order.seconds:
                yield from tell()
            self._beat += 1
            try:
                if self._beat % clocked:
                    actions, policy_infos = act(now)
                else:
                    before = perf_counter()
                    actions, policy_infos = act(now)
                    taken = perf_counter() - before
                    asked += taken * MEET if self._alone is None or buffers[0].length else taken
            except BaseException as error:  # noqa: BLE001 - whatever it raises, sys.exit too, is placed and raised again
                raise self._blamed(error, now) from None
            for row in rows:
                episode = playing[row]
                if episode is None:
                    continue
                try:
                    try:
                        now[row] = episode.send((actions[row], None if policy_infos is None else policy_infos[row]))
                        continue
                    except StopIteration as end:
                        settle()
                        finished = self._finished(row, *end.value)
                except BaseException as error:  # noqa: BLE001 - raised on, with its place, or told of
                    if alone:
                        control.resets(buffers[row].index)
                    begun = self._failed(row, error, now, order)
                    if alone:
                        control.begins()
                    mark = perf_counter()
                    if not isinstance(begun, Lost):
                        now[row], playing[row] = begun
                        continue
                    ended: Results | None = [(buffers[row].index, 0, begun)]
                else:
                    ended = None if finished is None else self._ended(finished)
                if ended is None:  # it has only grown suspiciously long
                    now[row], playing[row] = self._going_on(row)
                    ready.append(self._remark_endless(buffers[row]))
                    yield from tell()
                    continue
                now[row] = playing[row] = None
                if alone:
                    control.ends()
                ready += ended
                mark = perf_counter()
                # an episode shares its buffer's memory: it must be on its way before the buffer is used again
                # but for the last ones of an order, which go with the word that it is over
                lent = bool(ended) and isinstance(ended[0][2], Episode)
                enough = len(ready) + len(packer) >= order.batch or packer.nbytes >= ENOUGH
                due = lent or enough or mark - since > order.seconds
                if due and (todo or not order.indices):
                    yield from tell()
        else:
            settle()
            self._clear()
        return self._told() or None

    def _clear(self) -> None:
        self._playing[:] = self._now[:] = [None] * self._recipe.rows

    def _finished(self, row: int, terminated: bool, truncated: bool) -> Episode | None:
        """The episode of a row that has stopped; None: it goes on after all. Raises BadStep."""
        if not (terminated or truncated):
            if self._recipe.max_steps is None:
                return None
            truncated = self._recipe.marks_cuts
        start = perf_counter()
        buffer = self._buffers[row]
        lent = self._globals is Globals.SEED and not self._packer.holds(buffer.length)  # then pickling copies
        episode = buffer.episode(terminated, truncated, copy=self._sink is None and not lent)
        self.shares.encode += perf_counter() - start
        return episode

    def _ended(self, episode: Episode) -> Results:
        """What becomes of a finished episode: (index, length, result), if it is not packed, and perhaps a remark."""
        start, index, length = perf_counter(), episode.index, len(episode)
        packed = self._sink is None and self._packer.holds(length) and self._packer.add(episode)
        made = episode if self._sink is None else self._store(episode)
        ended: Results = [] if packed else [(index, length, made)]
        self.shares.encode += perf_counter() - start
        if "nan" not in self._said and math.isnan(episode.total_reward) and np.isnan(episode.rewards).any():
            self._said.add("nan")
            step = int(np.isnan(episode.rewards).argmax()) + 1
            text = f"episode {index} (seed {episode.seed}) has a reward that is not a number (NaN), in step {step}"
            ended.append((index, 0, Remark("nan", text)))
        return ended

    def _begin(self, row: int, index: int, root: int) -> tuple[Any, Any]:
        """Reset a row's environment for an episode; (first observation, the episode's coroutine)."""
        start = perf_counter()
        seed, policy_seed = seeding.episode_env_seed(root, index), seeding.episode_policy_seed(root, index)
        buffer = self._buffers[row]
        buffer.index, buffer.seed, buffer.length = index, seed, 0
        self._latest = row
        phase = "init"
        try:
            if self._recipe.fresh_env:
                close_env(self._envs[row])
                self._build_env(row)
            phase = "reset"
            self._begun[row] += 1
            if self._globals is not Globals.LEAVE:
                seeding.seed_globals(policy_seed)
            options = options_of(self._recipe.reset_options, index)
            given = {} if options is None else {"options": options}
            observation, info = first_observation(self._envs[row].reset(seed=seed, **given))
            phase = "policy"
            self._actor.start(row, policy_seed)
            phase = "reset"
            buffer.begin(index, seed, observation, info)
        except BaseException as error:  # noqa: BLE001 - raised on, with its place
            raise _placed(error, phase, buffer, None) from None
        playing = buffer.play(self._envs[row].step, observation, self._most, self._alone)
        next(playing)
        self.shares.reset += perf_counter() - start
        return observation, playing

    def _build_env(self, row: int) -> None:
        self._envs[row] = self._recipe.env.build()
        self._begun[row] = 0

    def _begin_or_lose(self, row: int, index: int, order: RolloutOrder) -> tuple[Any, Any] | Lost:
        """`_begin`; where episodes may be skipped also what has become of one that cannot be begun."""
        while True:
            try:
                return self._begin(row, index, order.root)
            except BaseException as error:  # noqa: BLE001 - raised on, or told of
                lost = self._lost(row, error, order)
                if lost is not None:
                    return lost

    def _failed(self, row: int, error: BaseException, now: list[Any], order: RolloutOrder) -> tuple[Any, Any] | Lost:
        """A row's episode has raised: the same one from its beginning, in a new environment, or `Lost`; where it may
        not be skipped the error is raised on, with its place."""
        buffer = self._buffers[row]
        if buffer.asking:
            raise self._blamed(error, now) from None
        error = _placed(error, "step", buffer, buffer.action, playing=True)
        return self._lost(row, error, order) or self._begin_or_lose(row, buffer.index, order)

    def _lost(self, row: int, error: BaseException, order: RolloutOrder) -> Lost | None:
        """An episode whose failure may be skipped has failed; the row has a new environment now. None: the one that
        failed had played others before, so the episode is to be tried again. Raises what may not be skipped."""
        placed = attributes_of(error)
        phase = placed["treadle_phase"]
        if not order.skip or phase not in SKIPPED or not issubclass(type(error), Exception | SystemExit):
            raise error from None
        raised = Raised.of(error, phase, trail=placed.get("treadle_trail"), **placed["treadle_where"])
        again = self._begun[row] > 1
        with contextlib.suppress(Exception):  # it has failed already: what its end raises says nothing more
            close_env(self._envs[row])
        try:
            self._build_env(row)
        except BaseException as error:  # noqa: BLE001 - raised on, with its place
            raise _placed(error, "init", self._buffers[row], None) from None
        return None if again else Lost(raised)

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
            told = closed_by_others(error) if isinstance(error, OSError) else None  # a descriptor of the worker's own
            if told is not None:
                latest = self._buffers[self._latest]
                raise (error if latest.index < 0 else _placed(told, "stream", latest, None)) from None
            where = {"episode": episode.index, "seed": episode.seed}
            attributes_of(error).update(treadle_phase="write", treadle_where=where)
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
        return _placed(error, "policy", self._buffers[row], None, playing=True)

    def _endless(self) -> int:
        """After how many steps a warning is due: never for an environment that has a limit of its own."""
        spec = getattr(self._envs[0], "spec", None)
        return LONG if spec is None or spec.max_episode_steps is None else 1 << 62

    def _remark_endless(self, buffer: EpisodeBuffer) -> tuple[int, int, Remark]:
        text = f"episode {buffer.index} has taken {buffer.length:,} steps and the environment has no time limit; "
        return buffer.index, 0, Remark("endless", text + "max_episode_steps (--max-episode-steps) would cut it")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An attribute; called when it can be."""
        found = getattr(self, name)
        return found(*args, **kwargs) if callable(found) else found

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._actor.close()
        for env in self._envs:
            close_env(env)


def _placed(
    error: BaseException, phase: str, buffer: EpisodeBuffer, action: Any, *, playing: bool = False
) -> BaseException:
    """The same exception, knowing which episode it happened in (the server reads these when it reports it), and, where
    that was `playing`, what was done in it."""
    from treadle.wire.copies import portable

    where: dict[str, Any] = {"episode": buffer.index, "seed": buffer.seed}
    if phase != "reset":
        where["step"] = buffer.length + 1
    if type(error) is BadStep and error.step is not None:
        where["step"] = error.step
    elif phase == "step":
        where["last_action"] = portable(action)
    trail = buffer.trail(phase == "step") if playing else None
    attributes_of(error).update(treadle_phase=phase, treadle_where=where, treadle_trail=trail)
    return error


def _without_banner(env: EnvRecipe) -> None:
    """ALE greets every new environment with two lines on stderr; from here on it says warnings and errors only."""
    if isinstance(env.env, str):
        import_package(env.env)
    ale: Any = sys.modules.get("ale_py")
    if ale is not None:
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Warning)
