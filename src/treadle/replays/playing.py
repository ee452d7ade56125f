"""The player: builds one environment in this process and repeats the recorded resets and steps.

No pool is in between: the environment's frames are the innermost of the traceback, and a debugger stops in them. A
death, or a hang that holds the interpreter, is played in a process of its own: see `replay.py`.
"""

from __future__ import annotations

import pdb
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from treadle import seeding
from treadle.errors import UsageError
from treadle.play.recipe import options_of
from treadle.program.actors import Actor, build_actor
from treadle.program.base import OnEnd
from treadle.program.gym_env import EnvRecipe, wants_numpy_integers
from treadle.program.policies import load_object
from treadle.progress import printable
from treadle.replays.result import Checks, Replay, own_frames, stack_of
from treadle.repro import Repro
from treadle.sample.named import Named, env_of
from treadle.spaces import Layout
from treadle.tasks.slot import SamplerRecipe, TaskSlot


class StillRunning(BaseException):
    """Ends a step that takes longer than the limit, at the line that runs then.

    It is not an Exception, as some environments catch all of those.
    """


class Left(BaseException):
    """A person has left the debugger within a step."""


@contextmanager
def limited(seconds: float | None) -> Iterator[Callable[[], None]]:
    """Run a block in which `StillRunning` is raised so many seconds after the latest call of the yielded function.

    It ends Python code alone, and only in the main thread. `seconds` None: no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def ring(*_: Any) -> None:
        raise StillRunning(f"no step came to its end for {seconds:g} s")

    began, timer = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, 0.0)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if timer[0]:  # one of the caller's own goes on
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, timer[0] - time.monotonic() + began), timer[1])


def recipe_from(repro: Repro, env: Any, trust: bool, render: bool = False) -> EnvRecipe:
    """Return the recipe of the environment.

    `env`: given in the place of the recorded one; None: the recorded one. `trust`: see `replay`. `render`: True: with
    render_mode="rgb_array".
    """
    kwargs = dict(repro.get("kwargs", trust) or {})
    if render:
        kwargs["render_mode"] = "rgb_array"
    found = [repro.get(f"wrapper {i}", trust) for i in range(repro.about.get("wrappers", 0))]
    wrappers = tuple(Named(each) if isinstance(each, str) else each for each in found)
    built = env_of(repro.get("env", trust) if env is None else env)
    return EnvRecipe(built, kwargs, wrappers)


def actions_of(repro: Repro, space: Any, numpy_integers: bool = False) -> list[Any] | None:
    """Return the recorded actions, as the environment was given them; None: there are none.

    Raises UsageError for actions that do not fit the space.
    """
    layout = Layout.of(space)
    layout.numpy_integers = numpy_integers
    arrays = _leaves(repro, layout)
    if all(array is None for array in arrays) or not layout.leaves:
        return None
    count = max(len(array) for array in arrays if array is not None)
    for leaf, array in zip(layout.leaves, arrays, strict=True):
        if array is not None and array.shape[1:] != leaf.shape:
            raise UsageError(f"the recorded actions do not fit {space}: give the environment that was played with env")
    if len(arrays) == 1 and arrays[0].dtype != layout.leaves[0].dtype:  # an agent's own, say, of another precision
        return list(arrays[0])
    return layout.batch_reader(arrays, 0, count)({i: [None] * count for i in layout.loose} or None)


def _leaves(repro: Repro, layout: Layout) -> list[Any]:
    return [repro.arrays.get(f"action.{i}") for i in range(len(layout.leaves))]


class Player:
    """Plays a recording in an environment.

    Args:
        repro: the recording.
        env: the environment, built.
        until: stop after so many steps, counted over all episodes, 0 for the reset; None: at the end.
        debug: True: stop in a debugger there, before the step (or the first reset) is made.
        tick: called before each reset and step with the episode and the step, 0 for resets.
        picture: called after each reset and step with the values of `treadle.replays.pictures.film_of`; None: no film.
        other: True for an environment in the place of the recorded one: its first observation must be the same.

    Attributes:
        result: the result so far.
        checks: the comparison with the recording.
        at: number of steps since the beginning, in all episodes; a reset in the place of a step counts.
    """

    def __init__(
        self,
        repro: Repro,
        env: Any,
        *,
        until: int | None = None,
        debug: bool = False,
        tick: Callable[[int, int], None] = lambda episode, step: None,
        picture: Callable[[int, float | None, float, bool], None] | None = None,
        other: bool = False,
    ) -> None:
        self.env, self.result, self._tick, self._picture = env, Replay(repro), tick, picture
        self._debug, self.at, self._begun, self._other = debug, 0, False, other
        self._until, self._most = until, repro.about.get("max_steps")
        self.checks = Checks(repro, env)
        self.result.compared = self.checks.compared

    @property
    def enough(self) -> bool:
        """True at the step to stop after; `result.stopped` is set likewise."""
        self.result.stopped = self._until is not None and self.at >= self._until
        return self.result.stopped

    def reset(self, *, counts: bool = False, number: int | None = None, **given: Any) -> Any:
        """Reset the environment and return the observation.

        Args:
            counts: True: the reset is made in the place of a step.
            number: of the episode; None: the next number, 0 for the first reset.
            **given: for the environment's `reset`.

        Raises Left as `step` does, and what the environment raises.
        """
        self.result.episode = self.result.episode + self._begun if number is None else number
        self._begun, self.result.steps = True, 0
        self._tick(self.result.episode, 0)
        here = self._debug and self._until == self.at + counts and (counts or self.at == 0)
        observation, _ = _into(self.env, "reset", **given) if here else self.env.reset(**given)
        if counts:
            self.at += 1
            self.checks.step(self.at, 0.0, False, False)
        self._seen(observation)
        return observation

    def step(self, action: Any, then: Callable[[], Any] | None = None) -> tuple[Any, bool]:
        """Step the environment; return (observation, True if the episode has ended).

        `then`: called at an episode's end to reset at once, and returns the observation; None: no reset.

        Raises Left when the user leaves the debugger, and what the environment raises.
        """
        self.at, self.result.steps = self.at + 1, self.result.steps + 1
        self._tick(self.result.episode, self.result.steps)
        if self._debug and self.at == self._until:
            answer = _into(self.env, "step", action)
        else:
            answer = self.env.step(action)
        observation, reward, terminated, truncated, _ = answer
        truncated = truncated or (not terminated and self.result.steps == self._most)  # as the run's own limit cut it
        self.result.total_reward += float(np.sum(reward))
        self.checks.place = self.result.episode, self.result.steps
        self.checks.step(self.at, reward, terminated, truncated)
        ended = bool(terminated or truncated)
        if getattr(self.env, "moved", False):
            self.result.episode, self.result.steps = self.result.episode + 1, 0
        if ended and then is not None:
            return then(), True
        self._seen(observation, float(np.sum(reward)))
        return observation, ended

    def _seen(self, observation: Any, reward: float | None = None) -> None:
        self.result.observation = observation
        self.checks.place = self.result.episode, self.result.steps
        self.checks.observation(self.at, observation)
        if self._wrong:
            raise Left
        if self._picture is not None:
            self._picture(self.result.steps, reward, self.result.total_reward, self.checks.difference is not None)

    @property
    def _wrong(self) -> bool:
        return self._other and self.at == 0 and self.checks.difference is not None

    def run(self, script: Callable[[Player], None], pdb: bool) -> Replay:
        """Play and return the result, which holds what the environment or the policy raises.

        `script`: plays by calls of `reset` and `step`. `pdb`: True: open a debugger at the line that raised.

        Raises UsageError if the first observation of an `other` environment is not the recorded one.
        """
        result = self.result
        try:
            script(self)
            self.checks.end()
        except Left:
            result.stopped = result.left = True
        except (Exception, SystemExit, StillRunning) as error:  # noqa: BLE001 - it is what is to be seen
            rest()  # a person may take as long as they like
            result.error, result.stack = error, stack_of(error)
            if isinstance(error, StillRunning):
                result.died = str(error)
            if pdb:
                print(printable(result.stack), end="")
                _post_mortem(error, readrc=not result.repro.doubt)
        result.difference = self.checks.difference
        if self._wrong:
            raise UsageError(f"env (--env) is not what was played: it differs in {self.result.difference}")
        return self.result


def rest() -> None:
    """Stop the clock of a limit that is set here; a timer of the user's own goes on."""
    if getattr(signal.getsignal(signal.SIGALRM), "__qualname__", "").startswith("limited."):
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _post_mortem(error: BaseException, readrc: bool) -> None:
    debugger = pdb.Pdb(nosigint=True, readrc=readrc)  # a .pdbrc may have come with the file
    debugger.reset()
    debugger.interaction(None, own_frames(error.__traceback__, users=True))


def _into(env: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call `env.step` or `env.reset` in a debugger, which stops at the first line of the innermost environment's own.

    Raises Left when the user leaves the debugger.
    """
    inner = getattr(env, "unwrapped", env)
    code = getattr(getattr(inner, name), "__code__", None)
    debugger = pdb.Pdb(nosigint=True, readrc=False)
    if code is not None and env is not inner:
        # not the line after that of its name, which may be the signature's or a text
        first = code.co_firstlineno
        line = next((line for *_, line in code.co_lines() if line is not None and line > first), first)
        debugger.rcLines = [f"tbreak {code.co_filename}:{line}", "continue"]
    answer = debugger.runcall(getattr(env, name), *args, **kwargs)
    if answer is None:
        raise Left
    return answer


def script_of_episode(repro: Repro, env: Any, policy: Any, trust: bool) -> Callable[[Player], None]:
    """Return the script of an episode that was made by its index: its seeds, and recorded actions or a policy.

    `policy`: see `replay`.
    """
    about = repro.about
    most = about.get("max_steps") or 1 << 62
    recorded = None if policy is not None else actions_of(repro, env.action_space)
    options = repro.get("options", trust)
    if (named := repro.get("reset_options", trust)) is not None:
        options = options_of(Named(named), about["index"])
    actor: Actor | None = None
    if recorded is None or about.get("failed", {}).get("phase") == "policy":
        chosen = repro.get("policy", trust) if policy in (None, True) else policy
        acts = hasattr(chosen, "act_alone")
        spaces, best = (env.observation_space, env.action_space), bool(about.get("deterministic"))
        actor = chosen if acts else build_actor(chosen, *spaces, deterministic=best)
    # several: of samplers' workers that died, of which one ended it; without seeds it goes on as the one before left it
    plays = about.get("plays") or [(about["seed"], about["policy_seed"], None)]

    def script(player: Player) -> None:
        for play in plays:
            episode(player, *play)

    def episode(player: Player, seed: int | None, policy_seed: int | None, number: int | None) -> None:
        if player.enough:
            return
        if policy_seed is not None:
            seeding.seed_globals(policy_seed)
        if about.get("generator"):
            env.unwrapped.np_random.bit_generator.state = about["generator"]
        observation = player.reset(number=number, seed=seed, **({} if options is None else {"options": options}))
        if actor is not None:
            actor.start(0, policy_seed or 0)
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


def script_of_slot(repro: Repro, env: Any, trust: bool) -> Callable[[Player], None]:
    """Return the script of a vector's slot: its episodes since its last reset with a seed.

    Raises UsageError if that reset was too long ago to be recorded.
    """
    about = repro.about
    if about.get("lost"):
        raise UsageError(
            f"the slot was last reset with a seed more than {about['lost']:,} steps before the recorded ones. "
            "Call reset(seed=...) from time to time, or collect by index, where every episode has its own seed"
        )
    mode = OnEnd(about["autoreset"])
    actions = actions_of(repro, env.action_space, wants_numpy_integers(env)) or [None] * about["steps"]
    for place, leaves in (repro.get("mailed", trust) or {}).items():
        actions[int(place)] = _with_mailed(repro, env.action_space, int(place), leaves)
    given = repro.get("options", trust)
    orders: dict[int, list[tuple[Any, ...]]] = {}
    for (place, seed), options in zip(about["resets"], given, strict=True):
        orders.setdefault(place, []).append((seed, *options))

    def script(player: Player) -> None:
        over, lasting = False, None
        for at in range(len(actions) + 1):
            for seed, options, lasts in orders.get(at, ()):
                lasting, over = options if lasts else None, False
                player.reset(seed=seed, options=options)
            if at == len(actions) or player.enough:
                return
            if over and mode is OnEnd.NEXT_STEP:
                over = False
                player.reset(counts=True, seed=None, options=lasting)
                continue
            same = partial(player.reset, seed=None, options=lasting) if mode is OnEnd.SAME_STEP else None
            _, ended = player.step(actions[at], same)
            over = ended and same is None

    return script


class TaskSlotEnv:
    """A slot of a vector of tasks, as an environment: a step that ends a task moves on to the next.

    Attributes:
        moved: True if the last step moved on.
    """

    def __init__(self, program: TaskSlot) -> None:
        self._program, about = program, program.describe()
        self.observation_space, self.action_space = about.observation_space, about.action_space
        self.reset, self.close, self.moved = program.begin, program.close, False

    def step(self, action: Any) -> Any:
        """Make a step of the program, and move on where it ends a task."""
        found = self._program.step(action)
        ended = found[2] or found[3]
        self.moved = bool(ended) and self._program.ended(*found).final_info is not None
        return found


def task_env(repro: Repro, trust: bool) -> TaskSlotEnv:
    """Build the slot of a vector of tasks that failed: its sampler, with the same arguments."""
    make = repro.get("make", trust)
    make = load_object(make) if isinstance(make, str) else make
    method = repro.get("start", trust)
    recipe = SamplerRecipe.of(make, dict(repro.get("args", trust) or {}), method)
    return TaskSlotEnv(TaskSlot(recipe, repro.get("callbacks", trust), repro.about["resample"]))


def _with_mailed(repro: Repro, space: Any, at: int, leaves: dict[str, Any]) -> Any:
    """Return the action of step `at`, whose `leaves` went by message: leaf -> value."""
    layout = Layout.of(space)
    rows = [None if a is None else a[at : at + 1] for a in _leaves(repro, layout)]
    return layout.batch_reader(rows, 0, 1)({int(leaf): [value] for leaf, value in leaves.items()})[0]
