"""The programs that make whole episodes: play each index of an order from (root, index), hand the results on.

One worker plays `rows` environments at once, so that a policy is asked with batches. An episode may be played in any
of them. Everything random in episode i comes from (root, i), and its end does not depend on its neighbours. An order
ends as soon as an environment is free and no index is left to begin. The other episodes go on in the next order.

With the policy in the caller, actions come from the caller (`AskedSlot`). The episode is the same, byte for byte.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Any, cast

import numpy as np
from gymnasium.vector.utils import batch_space

from treadle import seeding
from treadle.errors import BadAction, UsageError, attributes_of
from treadle.memory.arena import closed_by_others
from treadle.play.episode import Episode
from treadle.play.pack import ENOUGH, SMALL, Packer
from treadle.play.player import EpisodePlayer, placed
from treadle.play.recipe import FailedEpisode, Remark, Results, RolloutOrder, RolloutRecipe, Shares
from treadle.play.recorder import MEET, EpisodeBuffer
from treadle.program.actors import build_actor
from treadle.program.base import Description, Program, StepResult, StreamControl
from treadle.program.gym_env import EnvRecipe, Suite, check_reset, close_env, portable_spec
from treadle.program.ids import import_package
from treadle.spaces import Layout, Mismatch


class Globals(Enum):
    """The treatment of the process's global random generators (random, numpy, torch) at an episode's start."""

    SEED = "seed"  # the worker's own process: seed them, for envs and policies that use them
    SWAP = "swap"  # the caller's own thread: the same, but the caller gets its own back
    LEAVE = "leave"  # threads share them with everybody: hands off


class EpisodeSlot(Program):
    """Base of slots that play episodes. A subclass builds its objects in `_build`, and `_play` yields its results."""

    def __init__(self, globals: Globals) -> None:
        self._globals = globals
        self._own: seeding.OwnGlobals | None = None
        with seeding.keep_globals() if globals is Globals.SWAP else nullcontext():  # building may seed them, too
            self._build()
            if globals is Globals.SWAP:
                self._own = seeding.OwnGlobals(seeding.GlobalState())

    def _build(self) -> None:
        raise NotImplementedError

    def stream(self, order: Any, control: StreamControl) -> Generator[Any, None, Any]:
        """Yield and return the results of `_play`."""
        playing = self._play(order, control)
        try:
            return (yield from playing if self._own is None else self._own.run(playing))
        except BaseException:
            self._clear()
            raise

    def _play(self, order: Any, control: StreamControl) -> Iterator[Any]:
        raise NotImplementedError

    def _clear(self) -> None:
        """Give up the episodes in play."""


RESULTS = "results"  # the key of an info under which results travel


class Stretch:
    """The time between two messages, and how it is divided.

    Attributes:
        since: the clock at its start.
        mark: the clock from which on seconds of playing are not yet noted in the shares.
        asked: the policy's estimated part of these seconds.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares, self.asked = shares, 0.0
        self.since = self.mark = perf_counter()

    def begin(self) -> None:
        """Begin a stretch: earlier messages do not count in it."""
        self.since = self.mark = perf_counter()

    def settle(self) -> None:
        """Note the seconds of playing since `mark` in the shares, and set `mark` to now."""
        clock = perf_counter()
        self._shares.played(clock - self.mark, self.asked)
        self.mark, self.asked = clock, 0.0


class RolloutSlot(EpisodeSlot):
    """Plays episodes with the policy in the same worker, which is asked about `recipe.rows` rows.

    Args:
        recipe: how episodes are played.
        slot: its number.
        globals: the treatment of the process's global generators.
        shared: True if its process plays other slots, too.
        envs: number of environments that are built, for the first of the rows; 0: one for each row.
    """

    def __init__(self, recipe: RolloutRecipe, slot: int, globals: Globals, shared: bool = False, envs: int = 0) -> None:
        self._recipe, self._slot, self._envs = recipe, slot, envs or recipe.rows
        self._shared = (shared or self._envs > 1) and globals is not Globals.LEAVE
        self.shares = Shares()
        super().__init__(globals)
        self._playing: list[Any] = [None] * self._envs  # how each row's episode is given an action
        self._now: list[Any] = [None] * recipe.rows  # the observation each row acts on; None: no episode
        self._beat = 0  # how often all rows together were given their actions
        self._said: set[str] = set()  # kinds of remarks made
        self._ready: Results = []  # what is to be told, besides what is packed

    def _build(self) -> None:
        recipe = self._recipe
        _without_banner(recipe.env)
        envs = [recipe.env.build() for _ in range(self._envs)]
        env = envs[0]
        if self._slot == 0 and isinstance(recipe.env.env, Suite):  # one for all
            cast(Any, env).check()
        check_reset(env, "seed")
        self._observations, self._actions = Layout.of(env.observation_space), Layout.of(env.action_space)
        spaces = env.observation_space, env.action_space
        self._actor = build_actor(recipe.policy, *spaces, recipe.rows, recipe.deterministic)
        self._sink = recipe.sink(self._slot, env.observation_space, env.action_space) if recipe.sink else None
        seeds = self._globals is not Globals.LEAVE
        self._players = []
        for row, env in enumerate(envs):
            record = EpisodeBuffer(self._observations, self._actions, infos=recipe.infos)
            start, turns = partial(self._actor.start, row), seeding.Turns() if self._shared else None
            self._players.append(EpisodePlayer(recipe, env, record, start, self.shares, seeds, turns))
        self._latest = self._players[0]  # who has begun an episode last
        self._packer = Packer(self._observations, self._actions, recipe.infos, SMALL if recipe.packs else 0)

    def record(self, recorder: Any, lane: int) -> None:
        recorder.swap(lane, "policy", self._actor, "act", "act_alone")
        recorder.swap(lane, "encode", self, "_ended")
        for player in self._players:
            recorder.swap(lane, "reset", player, "begin")
            player.timed = partial(recorder.timed, lane, "step")

    def describe(self) -> Description:
        env = self._players[0].env
        return Description(env.observation_space, env.action_space, metadata={"spec": portable_spec(env)})

    def _play(self, order: RolloutOrder, control: Any) -> Generator[Results, None, Results | None]:
        """Yield lists of (index, length, result); among them (index, 0, Remark) and (index, 0, FailedEpisode).

        Ready results are yielded before an exception is raised. The last ones are returned; None: there are none.
        """
        self._take_results()
        try:
            return (yield from self._rounds(order, control))
        except GeneratorExit:  # nobody listens
            raise
        except BaseException:
            if told := self._take_results():
                yield told
            raise

    def _take_results(self) -> Results:
        """Return the results that wait to be sent, and forget them."""
        told, packer = self._ready.copy(), self._packer
        self._ready.clear()
        return [(-1, 0, packer.pack()), *told] if packer else told

    def _rounds(self, order: RolloutOrder, control: Any) -> Generator[Results, None, Results | None]:
        act, players, playing, now = self._actor.act, self._players, self._playing, self._now
        ready, packer, todo = self._ready, self._packer, deque(order.indices)
        rows, alone = range(len(players)), len(now) == 1
        players[0].alone = (self._actor.act_alone, control.stopped) if alone else None
        clocked = 1 if alone else MEET  # one call in MEET is timed; if alone, first ones and one in MEET
        time = self._time = Stretch(self.shares)
        while not control.stopped():
            while todo and None in playing:
                if playing.count(None) < len(rows):  # a pause in playing
                    time.settle()
                index, row = todo.popleft(), playing.index(None)
                player = self._latest = players[row]
                control.resets(index)
                begun = player.begin(index, order.root, order)
                if alone:
                    control.begins()
                if isinstance(begun, FailedEpisode):
                    ready.append((index, 0, begun))
                else:
                    now[row], playing[row] = begun, player.acts
                time.mark = perf_counter()
            free = playing.count(None)
            if free == len(rows) or (free and order.indices):
                break
            if (ready or packer) and perf_counter() - time.since > order.seconds:
                time.settle()
                yield self._take_results()
                time.begin()
            self._beat += 1
            try:
                if self._beat % clocked:
                    actions, policy_infos = act(now)
                else:
                    before = perf_counter()
                    actions, policy_infos = act(now)
                    taken = perf_counter() - before
                    time.asked += taken * MEET if not alone or players[0].record.length else taken
            except BaseException as error:  # noqa: BLE001 - whatever it raises, sys.exit too, is placed and raised again
                raise self._blamed(error) from None
            for row in rows:
                send = playing[row]
                if send is None:
                    continue
                if not alone:
                    control.plays(players[row].record.index, players[row].record.length)
                try:
                    now[row] = send((actions[row], None if policy_infos is None else policy_infos[row]))
                    continue
                except StopIteration as end:
                    ended = self._over(row, end.value, order, control)
                except BaseException as error:  # noqa: BLE001 - raised on, with its place, or told of
                    ended = self._failed(row, error, order, control)
                if ended is None:  # it has been begun again
                    continue
                ready += ended
                due = True
                if playing[row] is None:
                    if alone:
                        control.ends()
                    time.mark = perf_counter()
                    # an episode shares its buffer's memory: it must be on its way before the buffer is used again
                    # but for the last ones of an order, which go with the word that it is over
                    lent = bool(ended) and isinstance(ended[0][2], Episode)
                    enough = len(ready) + len(packer) >= order.batch or packer.nbytes >= ENOUGH
                    due = lent or enough or time.mark - time.since > order.seconds
                    due = due and bool(todo or not order.indices)
                if due:
                    time.settle()
                    yield self._take_results()
                    time.begin()
            if not alone:
                control.ends()
        else:
            time.settle()
            self._clear()
        return self._take_results() or None

    def _over(self, row: int, ends: tuple[bool, bool], order: RolloutOrder, control: Any) -> Results | None:
        """Return the results of a row whose episode has stopped with `ends`; None: it has failed and begun again."""
        self._time.settle()
        player = self._players[row]
        try:
            finished = self._finished(player, *ends)
        except BaseException as error:  # noqa: BLE001 - raised on, with its place, or told of
            return self._failed(row, error, order, control)
        if finished is None:  # it has only grown suspiciously long
            self._now[row], self._playing[row] = player.go_on(), player.acts
            return [self._remark_endless(player.record)]
        self._now[row] = self._playing[row] = None
        return self._ended(finished)

    def _failed(self, row: int, error: BaseException, order: RolloutOrder, control: Any) -> Results | None:
        """Return the results of a row whose episode has raised: that it is lost. None: it has been begun again.

        Raises the error, with its place, if the policy has raised or the episode may not be skipped.
        """
        player = self._latest = self._players[row]
        if player.record.asking:
            raise self._blamed(error) from None
        control.resets(player.record.index)
        begun = player.again(error, order)
        if len(self._now) == 1:
            control.begins()
        self._time.mark = perf_counter()
        if isinstance(begun, FailedEpisode):
            self._now[row] = self._playing[row] = None
            return [(player.record.index, 0, begun)]
        self._now[row], self._playing[row] = begun, player.acts
        return None

    def _clear(self) -> None:
        self._playing[:], self._now[:] = [None] * self._envs, [None] * self._recipe.rows

    def _finished(self, player: EpisodePlayer, terminated: bool, truncated: bool) -> Episode | None:
        """Return the episode of a player that has stopped; None: it goes on, as nothing limits it. Raises BadStep."""
        if not (terminated or truncated):
            if self._recipe.max_steps is None:
                return None
            truncated = self._recipe.marks_cuts
        start = perf_counter()
        buffer = player.record
        lent = self._globals is Globals.SEED and not self._packer.holds(buffer.length)  # then pickling copies
        episode = buffer.episode(terminated, truncated, copy=self._sink is None and not lent)
        self.shares.encode += perf_counter() - start
        return episode

    def _ended(self, episode: Episode) -> Results:
        """Return a finished episode's (index, length, result), unless it is packed, and perhaps a remark."""
        start, index, length = perf_counter(), episode.index, len(episode)
        packed = self._sink is None and self._packer.holds(length) and self._packer.add(episode)
        made = episode if self._sink is None else self._store(episode)
        ended: Results = [] if packed else [(index, length, made)]
        self.shares.encode += perf_counter() - start
        if self._actor.told:
            new = [told for told in dict.fromkeys(self._actor.told) if told not in self._said]
            ended += [(index, 0, Remark(told, told)) for told in new]
            self._said.update(new)
            self._actor.told.clear()
        if "nan" not in self._said and math.isnan(episode.total_reward) and np.isnan(episode.rewards).any():
            self._said.add("nan")
            step = int(np.isnan(episode.rewards).argmax()) + 1
            text = f"episode {index} (seed {episode.seed}) has a reward that is not a number (NaN), in step {step}"
            ended.append((index, 0, Remark("nan", text)))
        return ended

    def _store(self, episode: Episode) -> Any:
        assert self._sink is not None
        try:
            return self._sink.add(episode)
        except Exception as error:
            told = closed_by_others(error) if isinstance(error, OSError) else None  # a descriptor of the worker's own
            if told is not None:
                raise placed(told, "stream", self._latest.record, None) from None
            where = {"episode": episode.index, "seed": episode.seed}
            attributes_of(error).update(treadle_phase="write", treadle_where=where)
            raise

    def _blamed(self, error: BaseException) -> BaseException:
        """Return a policy's error, placed in the episode of the row it names, or of the first row that is played."""
        row, now = attributes_of(error).get("treadle_row"), self._now
        context = vars(BaseException)["__context__"].__get__(error)  # its class may make more of reading it
        if row is None and type(context) is Mismatch:
            row = context.row
        if row is None or now[row] is None:
            row = next(row for row, observation in enumerate(now) if observation is not None)
        if issubclass(type(error), BadAction):  # as plain text: its path is the action's, not an observation's
            error = UsageError(str(error))
        return placed(error, "policy", self._players[row].record, None, playing=True)

    def _remark_endless(self, buffer: EpisodeBuffer) -> tuple[int, int, Remark]:
        text = f"episode {buffer.index} has taken {buffer.length:,} steps and the environment has no time limit; "
        return buffer.index, 0, Remark("endless", text + "max_episode_steps (--max-episode-steps) would cut it")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return an attribute of this slot, or the result of calling it if it can be called."""
        found = getattr(self, name)
        return found(*args, **kwargs) if callable(found) else found

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._actor.close()
        for player in self._players:
            close_env(player.env)


@dataclass(frozen=True)
class Begin:
    """The reset options of an `AskedSlot`.

    Attributes:
        index: of the episode.
        root: the run's seed.
        anew: True: build a new environment first.
    """

    index: int
    root: int
    anew: bool = False


class AskedSlot(RolloutSlot):
    """A slot whose actions come from the caller.

    Args:
        recipe: how an episode is played; its policy is not asked.
        slot: its number.
        globals: the treatment of the process's global generators.
        n_action_steps: number of steps in each action from the caller; None: one, and actions have no axis for steps.
        shared: True if its process plays other slots, too.
    """

    def __init__(
        self,
        recipe: RolloutRecipe,
        slot: int,
        globals: Globals,
        n_action_steps: int | None = None,
        shared: bool = False,
    ) -> None:
        self._n = n_action_steps
        super().__init__(recipe, slot, globals, shared and globals is Globals.SEED)
        self._player: EpisodePlayer = self._players[0]
        self._infos: list[dict[str, Any] | None] = []  # of the policy, for the steps of the next action
        self._row = [
            np.zeros((1, *(leaf.shape or ())), leaf.dtype) if leaf.fixed else None for leaf in self._actions.leaves
        ]
        self.step = self._act if n_action_steps is None else self._act_all

    def describe(self) -> Description:
        about = super().describe()
        space: Any = about.action_space
        if self._n is not None:
            if self._actions.loose:
                raise UsageError("n_action_steps is for actions of fixed shape")
            space = batch_space(space, self._n)
        metadata = {**about.metadata, "action_space": about.action_space}
        return Description(about.observation_space, space, begins_next=False, metadata=metadata)

    def begin(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        order: Begin = options
        self._infos = []
        if order.anew:
            self._player.rebuild()
        with self._turn():
            return self._player.begin(order.index, order.root), {}

    def record(self, recorder: Any, lane: int) -> None:
        recorder.swap(lane, "reset", self, "begin")
        recorder.swap(lane, "encode", self, "_ended")

    def note(self, infos: list[dict[str, Any] | None]) -> None:
        """Note the policy's infos about the steps of its next action."""
        self._infos = infos

    def _act(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        began, player = perf_counter(), self._player
        info = self._infos.pop(0) if self._infos else None
        ended: Any = None
        with self._turn():
            try:
                observation = player.acts((action, info))
            except StopIteration as end:
                ended = end.value
            except BaseException as error:
                attributes_of(error)["treadle_trail"] = player.record.trail(True)
                raise
        self.shares.step += perf_counter() - began
        if ended is None:
            return observation, 0.0, False, False, {}
        episode = self._finished(player, *ended)
        if episode is None:  # it has only grown suspiciously long
            return player.go_on(), 0.0, False, False, {RESULTS: [self._remark_endless(player.record)]}
        last, player.send = player.record.last, None
        terminated, truncated = bool(episode.terminated[-1]), bool(episode.truncated[-1])
        return last, 0.0, terminated, truncated, {RESULTS: self._ended(episode)}

    def _act_all(self, actions: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make the steps of `actions` [n_action_steps, ...], until the episode ends."""
        assert self._n is not None
        leaves = [np.asarray(leaf) for leaf in self._actions.flatten(actions)]
        told: list[Any] = []
        for step in range(self._n):
            for row, leaf in zip(self._row, leaves, strict=True):
                row[0] = leaf[step]  # type: ignore[index]  # all leaves are fixed
            (action,) = self._actions.batch_reader(self._row, 0, 1)(None)
            result = self._act(action)
            told += result[4].get(RESULTS, [])
            if self._player.send is None:
                break
        return (*result[:4], {RESULTS: told} if told else {})

    def ended(
        self, observation: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> StepResult:
        return StepResult(observation, reward, terminated, truncated, info)

    def _turn(self) -> Any:
        """Return a block with global generators of its own if the slot runs in the caller's thread."""
        return contextlib.nullcontext() if self._own is None else self._own.turn()


def _without_banner(env: EnvRecipe) -> None:
    """Make ALE write only warnings and errors to stderr, not two lines for every new environment."""
    if isinstance(env.env, str):
        import_package(env.env)
    ale: Any = sys.modules.get("ale_py")
    if ale is not None:
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Warning)
