"""Small episodes that travel together come out as they went in, each on its own."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.play.episode import Episode
from treadle.play.pack import SMALL, Pack, Packer
from treadle.spaces import Layout

SEEN = gym.spaces.Dict(
    {
        "at": gym.spaces.Box(-1, 1, (3,), np.dtype(">f4")),
        "said": gym.spaces.Text(8),
        "in": gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.Box(0, 255, (2, 2), np.uint8))),
    }
)
DONE = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiBinary(4)))


class Unreadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("of a class that is not here")


class Unsendable:
    def __reduce__(self) -> Any:
        raise TypeError("it cannot be pickled")


def episode(index: int, steps: int, info: Any = None, policy_info: Any = None) -> Episode:
    rng = np.random.default_rng(index)
    ends = np.zeros((2, steps), np.bool_)
    ends[index % 2, -1] = True
    seen = {
        "at": rng.random((steps + 1, 3)).astype(">f4"),
        "said": [f"{index}.{row}" for row in range(steps + 1)],
        "in": (rng.integers(5, size=steps + 1), rng.integers(255, size=(steps + 1, 2, 2)).astype(np.uint8)),
    }
    done = (rng.integers(3, size=steps), rng.integers(2, size=(steps, 4)).astype(np.int8))
    infos = tuple(dict(info or {}) for _ in range(steps + 1))
    given = () if policy_info is None else tuple(dict(policy_info) for _ in range(steps))
    return Episode(index, 7 * index, seen, done, rng.random(steps), ends[0], ends[1], infos, given)


def packed(episodes: list[Episode]) -> Pack:
    packer = Packer(Layout.of(SEEN), Layout.of(DONE), True, SMALL)
    assert all(map(packer.add, episodes))
    assert len(packer) == len(episodes)
    pack = packer.pack()
    assert not packer
    return pickle.loads(pickle.dumps(pack, 5))  # type: ignore[no-any-return]


def parts(made: Episode) -> list[Any]:
    seen, done = made.observations, made.actions
    return [seen["at"], *seen["in"], *done, made.rewards, made.terminated, made.truncated]


def test_they_come_out_as_they_went_in() -> None:
    episodes = [episode(3, 5), episode(1, 1, {"hit": 2}), episode(8, 4, None, {"value": 0.5})]
    pack = packed(episodes)
    assert pack.lengths() == [(3, 5), (1, 1), (8, 4)]
    for (index, steps, found), made in zip(pack.episodes(), episodes, strict=True):
        assert isinstance(found, Episode)
        assert (index, steps, found.index, found.seed) == (made.index, len(made), made.index, made.seed)
        assert found.observations["said"] == made.observations["said"]
        assert list(found.observations) == list(SEEN.spaces)
        assert (found.infos, found.policy_infos, found.final_info) == (made.infos, made.policy_infos, {})
        for there, here in zip(parts(found), parts(made), strict=True):
            assert (there.dtype, there.shape, there.tobytes()) == (here.dtype, here.shape, here.tobytes())
            assert there.base is None  # whoever keeps it keeps no other
            assert there.flags.writeable
        assert len({id(info) for info in found.infos}) == len(found.infos)


def test_one_that_cannot_be_read_leaves_the_others_alone() -> None:
    first, told, last = (found for _, _, found in packed([episode(0, 2), episode(1, 2, {"x": Unreadable()}),
                                                          episode(2, 3)]).episodes())  # fmt: skip
    assert isinstance(told, LookupError)
    assert isinstance(first, Episode)
    assert isinstance(last, Episode)
    assert last.observations["said"] == ["2.0", "2.1", "2.2", "2.3"]
    assert last.rewards.tobytes() == episode(2, 3).rewards.tobytes()


def test_one_that_cannot_be_sent_is_not_taken() -> None:
    packer = Packer(Layout.of(SEEN), Layout.of(DONE), True, SMALL)
    assert not packer.add(episode(0, 2, {"x": Unsendable()}))
    assert not packer
    assert packer.add(episode(1, 2))
    assert packer.pack().lengths() == [(1, 2)]


def test_small_is_what_its_arrays_take() -> None:
    layouts = Layout.of(SEEN), Layout.of(DONE)
    for steps in (1, 7, 300):
        size = episode(0, steps).nbytes
        assert Packer(*layouts, True, size).holds(steps)
        assert not Packer(*layouts, True, size - 1).holds(steps)


def test_what_was_taken_is_counted_with_its_infos() -> None:
    packer = Packer(Layout.of(SEEN), Layout.of(DONE), True, SMALL)
    assert packer.nbytes == 0
    packer.add(episode(0, 3, {"picture": np.zeros(5000, np.uint8)}))
    assert 5_000 < packer.nbytes < 6_000
    packer.pack()
    assert packer.nbytes == 0
