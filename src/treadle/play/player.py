"""One environment and the recorder of its episodes. The source of actions is not a player's business."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

from treadle import seeding
from treadle.errors import attributes_of
from treadle.play.contract import BadStep, first_observation
from treadle.play.recipe import SKIPPED, FailedEpisode, RolloutOrder, RolloutRecipe, Shares, options_of
from treadle.play.recorder import Alone, EpisodeBuffer, Recorder
from treadle.program.gym_env import close_env
from treadle.wire.messages import Raised, portable

LONG = 100_000  # steps of one episode without a time limit, after which a warning is given


class Player:
    """Plays an environment and records its episodes.

    Args:
        env: the environment to step.
        record: the recorder of episodes.
        most: steps of the longest episode.

    Attributes:
        send: takes (action, policy info or None) for the present episode, returns the next observation to act on.
            Raises as `Recorder.play`, and StopIteration with (terminated, truncated) at the end. None: no episode is
            played.
        alone: the policy that plays the episode to its end; None: actions come from outside. See `Recorder.play`.
        timed: wraps the environment's step to note an event; None: nothing is traced.
    """

    send: Any = None
    alone: Alone | None = None
    timed: Callable[[Any], Any] | None = None

    def __init__(self, env: Any, record: Recorder, most: float) -> None:
        self.env, self._record, self._most = env, record, most

    def play(self, observation: Any) -> Any:
        """Play on from `observation`; return the first observation that waits for an action. Raises as `send`."""
        step = self.env.step if self.timed is None else self.timed(self.env.step)
        playing = self._record.play(step, observation, self._most, self.alone)
        self.send = playing.send
        return next(playing)


class EpisodePlayer(Player):
    """Plays episodes by index, in environments that it builds.

    Args:
        recipe: how an episode is played.
        env: built by the recipe.
        record: the recorder of episodes.
        start: called with the policy's seed when an episode begins.
        shares: the seconds of resets are added to it.
        seeds: True: global generators are seeded when an episode begins.
        turns: the turns of environments that share the process; None: the environment is the only one.
    """

    def __init__(
        self,
        recipe: RolloutRecipe,
        env: Any,
        record: EpisodeBuffer,
        start: Callable[[int], None],
        shares: Shares,
        seeds: bool,
        turns: seeding.Turns | None = None,
    ) -> None:
        spec = getattr(env, "spec", None)
        limited = spec is not None and spec.max_episode_steps is not None
        super().__init__(env, record, recipe.max_steps or (1 << 62 if limited else LONG))
        self._recipe, self.record = recipe, record
        self._start, self._shares, self._seeds = start, shares, seeds
        self._begun, self._turns = 0, turns  # episodes of the present environment

    def begin(self, index: int, root: int, order: RolloutOrder | None = None) -> Any:
        """Begin episode `index` of the run with seed `root`, and return its first observation.

        Returns `FailedEpisode` if the order allows skipping, and the episode fails in an environment that has played no
        other. `order` None: nothing is skipped. Raises, with its place, what building, resetting and the policy raise.
        """
        record = self.record
        seed, policy_seed = seeding.episode_env_seed(root, index), seeding.episode_policy_seed(root, index)
        while True:
            start = perf_counter()
            record.index, record.seed, record.length = index, seed, 0
            phase = "init"
            try:
                if self._recipe.fresh_env:
                    close_env(self.env)
                    self._build()
                phase = "reset"
                self._begun += 1
                if self._seeds:
                    seeding.seed_globals(policy_seed)
                options = options_of(self._recipe.reset_options, index)
                given = {} if options is None else {"options": options}
                observation, info = first_observation(self.env.reset(seed=seed, **given))
                phase = "policy"
                self._start(policy_seed)
                phase = "reset"
                record.begin(index, seed, observation, info)
                break
            except BaseException as error:
                error = placed(error, phase, record, None)
                if order is None:
                    raise error from None
                lost = self._lost(error, order)
                if lost is not None:
                    return lost
        self.play(observation)
        if self._turns is not None:
            self._turns.begin()
        self._shares.reset += perf_counter() - start
        return observation

    @property
    def acts(self) -> Any:
        """The function that gives the present episode an action, see `send`."""
        return self.send if self._turns is None else self._act

    def _act(self, given: Any) -> Any:
        """As `send`, with the environment's own global generators where it draws from them."""
        turns = self._turns
        if turns is None or turns.own is None:
            return self.send(given)
        try:
            with turns.own.turn():
                return self.send(given)
        finally:
            turns.look(self.record.length)

    def again(self, error: BaseException, order: RolloutOrder) -> Any:
        """Begin the present episode, which has raised `error`, again in a new environment; return as `begin`.

        Raises the error, with its place, if the episode may not be skipped.
        """
        error = placed(error, "step", self.record, self.record.action, playing=True)
        return self._lost(error, order) or self.begin(self.record.index, order.root, order)

    def go_on(self) -> Any:
        """Go on without a limit of steps in a suspiciously long episode, and return its latest observation."""
        self._most = 1 << 62
        return self.play(self.record.last)

    def rebuild(self) -> None:
        """Take a new environment in place of one that has failed."""
        with contextlib.suppress(Exception):  # it has failed already: what its end raises says nothing more
            close_env(self.env)
        self._build()

    def _build(self) -> None:
        self.env, self._begun = self._recipe.env.build(), 0

    def _lost(self, error: BaseException, order: RolloutOrder) -> FailedEpisode | None:
        """Build a new environment after an episode's failure, and return the failed episode.

        None: the environment had played others before, so the episode is tried again. Raises the error if the episode
        may not be skipped, and what building raises.
        """
        known = attributes_of(error)
        phase = known["treadle_phase"]
        if not order.skip or phase not in SKIPPED or not issubclass(type(error), Exception | SystemExit):
            raise error from None
        raised = Raised.of(error, phase, trail=known.get("treadle_trail"), **known["treadle_where"])
        again = self._begun > 1
        try:
            self.rebuild()
        except BaseException as error:  # noqa: BLE001 - raised on, with its place
            raise placed(error, "init", self.record, None) from None
        return None if again else FailedEpisode(raised)


def placed(
    error: BaseException, phase: str, buffer: EpisodeBuffer, action: Any, *, playing: bool = False
) -> BaseException:
    """Return the exception with attributes for the server's report: its phase, episode, seed and step.

    `action`: the latest one, noted in phase "step". `playing`: True: the episode's record for a repro is added.
    """
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
