"""`tune`, which runs a few arrangements of a vector in turns and returns the fastest as code."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from operator import truediv
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from treadle import seeding
from treadle.checks import check_seconds, check_whole
from treadle.pool.processor import Usage, used
from treadle.program.asking import CallerPolicy
from treadle.program.base import OnEnd
from treadle.program.policies import built_policy, policy_name
from treadle.sample.named import env_name, env_of
from treadle.testing.machine import OTHERS
from treadle.vector.env_slot import slots_of
from treadle.vector.gymnasium import VectorEnv
from treadle.vector.shares import Measured, measure
from treadle.verdict import changes, verdict
from treadle.wire import bell
from treadle.worker.options import MOST_WORKERS

MOST, TURN = 6, 0.2  # the most arrangements; seconds of each in a round
ROUNDS = 4  # at least
LEVEL = 0.02  # relative difference of standings up to which they count as equal: the simpler arrangement then wins
SLOW = 0.85  # of the best standing: below it an arrangement is not tried in the second half of the time
DRAWN = 64  # random actions of each slot


@dataclass(frozen=True)
class Arrangement:
    """One arrangement of a vector.

    Attributes:
        workers: number of workers; None: the caller steps all slots.
        inline: number of slots that the caller steps.
        least: number of slots of a partial batch (`min` of `recv`); None: all slots are stepped together.
    """

    workers: int | None
    inline: int = 0
    least: int | None = None

    def __str__(self) -> str:
        given = f"inline={self.inline}" if self.workers is None else f"workers={self.workers}, inline={self.inline}"
        return given if self.least is None else f"{given}, recv(min={self.least})"

    @property
    def options(self) -> dict[str, int]:
        """The keyword arguments of the vector."""
        return {"inline": self.inline} if self.workers is None else {"workers": self.workers, "inline": self.inline}


@dataclass
class Tuning:
    """The result of `tune`.

    Attributes:
        env: the environment as code.
        num_envs: the number of environments.
        rates: arrangement -> steps a second in each round; the simplest arrangement first. A slow arrangement is
            stepped in the first rounds alone.
        verdicts: arrangement -> the verdict on its vector.
        others: cores that other programs used meanwhile; None: unknown.
    """

    env: str
    num_envs: int
    rates: dict[Arrangement, list[float]] = field(default_factory=dict)
    verdicts: dict[Arrangement, str] = field(default_factory=dict)
    others: float | None = None

    @property
    def standings(self) -> dict[Arrangement, float]:
        """Arrangement -> its standing: the median, over its rounds, of its rate divided by the round's mean rate.

        The mean is over the arrangements that were tried in all rounds. So a machine that is slow for some rounds
        changes no standing.
        """
        most = max(map(len, self.rates.values()))
        means = [*map(fmean, zip(*(rates for rates in self.rates.values() if len(rates) == most), strict=True))]
        return {each: median(map(truediv, rates, means)) for each, rates in self.rates.items()}

    @property
    def best(self) -> Arrangement:
        """The simplest of the arrangements whose standing is at most 2 % below the highest."""
        found = self.standings
        return next(each for each, share in found.items() if share >= (1 - LEVEL) * max(found.values()))

    @property
    def code(self) -> str:
        """A line of code that makes the best vector."""
        best = self.best
        given = ", ".join(f"{name}={value}" for name, value in best.options.items())
        partly = "" if best.least is None else f"; envs.batch_size = {best.least}  # and send, recv"
        return f"envs = treadle.make_vec({self.env}, num_envs={self.num_envs}, {given}){partly}"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        rows = [{"arrangement": str(each), "steps_per_s": rates} for each, rates in self.rates.items()]
        return {"rows": rows, "best": str(self.best), "code": self.code, "used_by_others": self.others}

    def __str__(self) -> str:
        widest = max(len(str(each)) for each in self.rates)
        lines = []
        for each, rates in self.rates.items():
            spread = f"{median(rates):9,.0f} steps/s ({min(rates):,.0f} to {max(rates):,.0f})"
            lines.append(f"{each!s:{widest}}  {spread}  {self.verdicts[each]}")
        if (self.others or 0.0) >= OTHERS:
            lines.append(f"other programs used {self.others:.1f} cores meanwhile: the order may differ without them")
        return "\n".join([*lines, self.code])


def worth_trying(n: int, cores: int, found: Measured | None) -> list[Arrangement]:
    """Return the first arrangements of n slots to try, the simplest first. Pure.

    `cores`: number of usable cores. `found`: the measurement of a step, as for `workers="auto"`; None: unknown.
    """
    workers, alone = min(n, cores), Arrangement(None, n)
    each = Arrangement(min(n, MOST_WORKERS))
    if found is not None and found.waits:
        tried = [alone, Arrangement(workers), each, Arrangement(each.workers, 0, max(1, n // 2))]
    elif n == 1 or cores == 1:
        tried = [alone, Arrangement(1)]
    else:
        shared = Arrangement(max(1, workers - 1), n // workers)
        tried = [alone, shared, Arrangement(workers), Arrangement(workers, 0, max(1, n // 2))]
    return list(dict.fromkeys(tried))


def meant(change: str, n: int, now: Arrangement) -> Arrangement | None:
    """Return the arrangement for a change that a verdict proposes; None: no arrangement of a vector has it. Pure.

    `n`: the number of slots; `now`: the arrangement that the verdict is about.
    """
    found = re.fullmatch(r"(workers=|inline=|recv\(min=)(\d+)\)?", change)
    if found is None:
        return None
    number = int(found[2])
    if found[1] == "workers=":
        return Arrangement(min(number, n))
    if found[1] == "inline=":
        return Arrangement(None, n) if number == n else None
    return Arrangement(now.workers, now.inline, number) if now.workers is not None else None


class Running:
    """A vector that is stepped in turns, with a policy or with random actions that were drawn beforehand."""

    def __init__(self, env: Any, n: int, how: Arrangement, policy: Any, seed: int, kwargs: dict[str, Any]) -> None:
        self.how, self._n = how, n
        self.vector = vector = VectorEnv(env, n, env_kwargs=kwargs, **how.options)  # type: ignore[arg-type]
        self.close = vector.close
        space = vector.single_action_space
        self._policy = None
        if policy is not None:
            built = built_policy(policy, vector.single_observation_space, space)
            self._policy = CallerPolicy(built, policy_name(policy), pad_to=None, n_action_steps=None)
            for slot in range(n):
                self._policy.start(slot, seeding.episode_policy_seed(seed, slot))
        space.seed(seed)
        self._drawn = [[space.sample() for _ in range(n)] for _ in range(DRAWN if policy is None else 0)]
        self._turn = 0
        if how.least is None:
            self._seen, _ = vector.reset(seed=seed)
            self._slots = list(range(n))
        else:
            vector.async_reset(seed=seed)
            self._take()

    def _act(self) -> Any:
        self._turn += 1
        if self._policy is not None:
            return self._policy.ask(self._seen, self._slots)[0]
        drawn = self._drawn[self._turn % DRAWN]
        return [drawn[slot] for slot in self._slots]

    def _take(self) -> None:
        self._seen, *_, infos = self.vector.recv(min=self.how.least)
        self._slots = infos["env_id"].tolist()

    def finish(self) -> None:
        """Wait for the steps under way."""
        if left := self._n - len(self._slots):
            self.vector.recv(min=left)

    def turn(self, seconds: float) -> float:
        """Step for so many seconds, at least once, and return the steps of all slots a second."""
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds or not steps:
            if self.how.least is None:
                self._seen, *_ = self.vector.step(self._act())
            else:
                self.vector.send(self._act(), self._slots)
                self._take()
            steps += len(self._slots)
        return steps / (time.perf_counter() - began)


def tune(
    env: str | EnvSpec | Callable[..., gym.Env],
    policy: Any = None,
    *,
    num_envs: int = 8,
    seed: int = 0,
    seconds: float = 12.0,
    env_kwargs: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> Tuning:
    """Try at most six arrangements of a vector in turns, and return the fastest as code.

    The first arrangements follow from the time that an environment spends in a step, as with `workers="auto"`. The
    verdicts on these propose others. All vectors are open at the same time. Results are not kept for later calls.

    Args:
        env: as for `make_vec`.
        policy: policy that acts in the loop; see `treadle.collect`. None: random actions that are drawn beforehand.
        num_envs: number of environments of the vector.
        seed: seed of the environments and the policy.
        seconds: seconds of stepping, in all arrangements together; their start is not counted. All are stepped in at
            least four rounds, however long these take.
        env_kwargs: keyword arguments of the environment; None: none.
        progress: called with words for each part before it begins.

    Returns:
        A `Tuning` with the rates and verdicts of all arrangements. `best` is the simplest one whose standing is at most
        2 % below the highest (see `Tuning.standings`). `code` is a line that makes its vector.

    Raises:
        UsageError: `num_envs` is not a whole number above 0, `seconds` is not above 0, or `env` names no environment.
        TreadleError: the errors of `VectorEnv`. The policy's own errors come as they are.
    """
    check_whole(none=False, num_envs=num_envs)
    check_seconds("seconds", seconds)
    env, kwargs, result = env_of(env), env_kwargs or {}, Tuning(_shown(env), num_envs)
    progress("how an environment spends a step")
    slot = slots_of(env, num_envs, OnEnd.NEXT_STEP, env_kwargs=kwargs)[0]
    todo = worth_trying(num_envs, bell.cores(), measure(slot, num_envs))
    with ExitStack() as stack:
        running: list[Running] = []
        while todo and len(running) < MOST:
            how = todo.pop(0)
            progress(f"starting {how}")
            one = stack.enter_context(closing(Running(env, num_envs, how, policy, seed, kwargs)))
            one.turn(2 * TURN)  # alone, so that the verdict is about this vector; it also warms the vector up
            result.verdicts[how] = str(one.vector.stats().verdict)
            running.append(one)
            known = [each.how for each in running] + todo
            todo += [each for each in _proposed(one, num_envs) if each not in known]
        running.sort(key=lambda each: (each.how.least is not None, each.how.workers or 0))
        result.rates = {each.how: [] for each in running}
        usage = Usage(SimpleNamespace(workers=[it for each in running for it in each.vector._pool.workers]))
        end, at, tried = time.monotonic() + seconds, 0, running
        while time.monotonic() < end or at < ROUNDS:
            progress(f"round {at + 1}")
            for each in tried[at % len(tried) :] + tried[: at % len(tried)]:
                result.rates[each.how].append(each.turn(TURN))
            at += 1
            if tried is running and at >= ROUNDS and time.monotonic() > end - seconds / 2:
                found = result.standings
                tried = [each for each in running if found[each.how] >= SLOW * max(found.values())]
        if used() is not None:
            result.others = round(usage.since().others, 2)
        for each in running:
            each.finish()
    return result


def _proposed(one: Running, n: int) -> Iterator[Arrangement]:
    """Yield the arrangements that the verdict on a vector proposes."""
    core = one.vector._core
    figures = core.measured.judged(int(one.vector.stats().steps.sum()), True)
    found = (meant(change, n, one.how) for change, _ in changes(figures, verdict(figures).kind))
    yield from (each for each in found if each is not None)


def _shown(env: Any) -> str:
    """Return an environment as code."""
    return repr(env) if isinstance(env, str) else env_name(env)
