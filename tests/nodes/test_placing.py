"""Which actor goes where, what travels and what must be alike: decisions that need no cluster."""

import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from time import monotonic

import numpy as np
import pytest

import treadle
from treadle.errors import UsageError
from treadle.nodes.host import differences, software, worth_sending
from treadle.nodes.placing import ALL, Machine, Placement, check, seat
from treadle.nodes.travel import PIECE, Writer, message_of, read
from treadle.nodes.worker import values_for
from treadle.sample.nodes import Fed, made_in, wanted

TWO = [Machine("a", "10.0.0.1", 4), Machine("b", "10.0.0.2", 16)]


def seats(machines: list[Machine], placement: Placement) -> list[str]:
    taken: dict[str, int] = {}
    found = []
    for _ in range(placement.nodes):
        if (machine := seat(machines, taken, placement)) is not None:
            taken[machine.id] = taken.get(machine.id, 0) + 1
            found.append(machine.id)
    return found


def test_a_pool_has_a_node_to_itself() -> None:
    assert seats(TWO, Placement(2)) == ["a", "b"]
    assert seats(TWO, Placement(5)) == ["a", "b"]  # the others wait for nodes


def test_several_fit_on_a_node_when_somebody_says_how_large_they_are() -> None:
    assert seats(TWO, Placement(4, 4)) == ["a", "b", "b", "b"]
    assert seats(TWO, Placement(9, 16)) == ["b"]


def test_single_workers_are_spread_over_so_many_nodes() -> None:
    for nodes, names in ((1, "aaa"), (2, "aba"), (ALL, "aba")):
        taken: dict[str, int] = {}
        for name in names:
            machine = seat(TWO, taken, Placement(nodes, shared=True))
            assert machine is not None
            assert machine.id == name
            taken[name] = taken.get(name, 0) + 1


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cpus_per_node=17 CPUs \(10\.0\.0\.1 has 4, 10\.0\.0\.2 has 16\)"):
        check(TWO, Placement(1, 17))
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(UsageError, match="nodes must be a whole number of at least 1"):
            Placement(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "face",
    [
        lambda **options: treadle.make_vec("CartPole-v1", 2, **options),
        lambda **options: treadle.plan.make("CartPole-v1", 2, **options),
        lambda **options: treadle.collect("CartPole-v1", episodes=1, **options),
        lambda **options: treadle.evaluate("CartPole-v1", len, 1, **options),
        lambda **options: treadle.MultiprocessingSampler(len, "CartPole-v1", max_episode_length=9, **options),
    ],
)
def test_faces_without_nodes_refuse_a_placement(face: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="placement= is gone") as told:
        face(placement=Placement(2))
    assert "\n" not in str(told.value)


def test_what_is_no_placement_is_refused() -> None:
    with pytest.raises(UsageError, match="placement= is gone"):
        treadle.RaySampler(len, "CartPole-v1", max_episode_length=9, placement="2 nodes")


@pytest.mark.parametrize(
    "run",
    [
        "list(treadle.collect('CartPole-v1', episodes=1, cluster=treadle.Cluster()))",
        "treadle.RaySampler(len, 'CartPole-v1', max_episode_length=9)",
        "treadle.plan.make('CartPole-v1', 1, cluster=treadle.Cluster())",
    ],
)
def test_without_ray_the_extra_is_named(run: str) -> None:
    script = f"import sys; sys.modules['ray'] = None\nimport treadle\n{run}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == (
        "treadle.errors.MissingExtra: nodes are reached by Ray: pip install 'treadle[ray]'"
    )


def test_messages_share_one_buffer_and_one_copy() -> None:
    writer = Writer()
    frames, few = np.arange(1000.0).reshape(10, 100), np.arange(3, dtype=np.int8)
    writer.add({"frames": frames, "few": few})
    writer.add(["no array"])
    batch = writer.batch()
    batch.body.flags.writeable = False  # as Ray hands it out
    first, second = read(batch)
    assert second == ["no array"]
    assert first["frames"].tolist() == frames.tolist()
    assert first["few"].tolist() == [0, 1, 2]
    first["few"][0] = 7  # a copy of its own
    assert next(iter(read(batch)))["few"][0] == 0
    with pytest.raises(TypeError, match="pickle"):
        writer.add(threading.Lock())
    assert len(writer.batch().messages) == 2


@pytest.mark.parametrize("nbytes", [10, PIECE - 200, 3 * PIECE, 40 * PIECE])
def test_a_batch_is_cut_into_as_many_values_as_are_asked_for(nbytes: int) -> None:
    """One that is too large for so many pieces stays whole."""
    whole = message_of(np.arange(nbytes).astype(np.uint8))._replace(more=True, number=3)
    assert whole.cut(1) is whole
    values = whole.cut(5)
    assert len(values) == 5
    *pieces, last = values
    assert (last.more, last.number) == (True, 3)
    assert sum(map(len, pieces)) + len(last.body) == len(whole.body)
    if nbytes <= 4 * PIECE:
        assert max(map(len, [*pieces, last.body])) <= PIECE
        assert len(pieces[0]) == min(PIECE, len(whole.body))
    else:
        assert not any(map(len, pieces))
    assert next(iter(read(last, *pieces))).tolist() == np.arange(nbytes).astype(np.uint8).tolist()


def test_a_message_waits_longer_the_longer_a_node_has_been_at_work() -> None:
    assert worth_sending(0.0, True) == worth_sending(0.1, True) == worth_sending(1.0, False) == (64 << 10, 0.05)
    assert worth_sending(1.0, True) == (512 << 10, 0.25)
    assert worth_sending(5.0, False) == (512 << 10, 0.2)
    assert worth_sending(1e6, True) == worth_sending(1e6, False) == (512 << 10, 0.5)


def test_other_software_is_named() -> None:
    mine = software(["gymnasium.envs", "treadle.nodes", "os", "__main__"])
    assert mine["treadle"] == metadata.version("treadle")
    assert set(mine) == {"Python", "treadle", "gymnasium", "numpy"}
    assert differences(mine, here="10.0.0.2") == []
    assert differences({**mine, "numpy": "0.1", "no_such_package": "1.0"}, here="10.0.0.2") == [
        f"numpy is {np.__version__} on 10.0.0.2 and 0.1 in the caller",
        "no_such_package is missing on 10.0.0.2 and 1.0 in the caller",
    ]


def test_a_package_without_a_version_is_known_by_its_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_own_env.py").write_text("x = 1\n")
    before = software(["my_own_env"])
    assert before["my_own_env"].startswith("a file with the checksum")
    (tmp_path / "my_own_env.py").write_text("x = 2\n")
    (text,) = differences(before, here="node")
    assert text.startswith("my_own_env is a file with the checksum")


@pytest.mark.parametrize(
    ("mine", "share", "soon", "left", "found"),
    [
        (0, (512, 256), 0.0, 9e9, 2048),  # nobody knows yet how fast it is: the share
        (1027, (512, 256), 0.0, 9e9, 2048),
        (1028, (512, 256), 0.0, 9e9, 0),
        (1028, (512, 2000), 2000.0, 9e9, 4000),  # a fast one: for two seconds, one at a time
        (8003, (512, 2000), 2000.0, 9e9, 4000),
        (8004, (512, 2000), 2000.0, 9e9, 0),
        (100, (14, 256), 3.0, 9e9, 56),  # long episodes: the share
        (100, (20, 20), 2000.0, 160.0, 400),  # towards the end a tenth of a second, if there is so much
        (404, (20, 20), 2000.0, 160.0, 0),
        (3, (1, 0), 2000.0, 0.0, 4),  # the very end: as the share says
        (4, (1, 0), 2000.0, 0.0, 0),
    ],
)
def test_what_a_node_of_four_gets(mine: int, share: tuple[int, int], soon: float, left: float, found: int) -> None:
    assert wanted(4, mine, share, soon, left) == found


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time at which the clock stands still, for the code that decides."""
    now = monotonic()
    monkeypatch.setattr("treadle.sample.nodes.monotonic", lambda: now)
    return now


def test_what_is_made_in_a_while_is_no_guess_from_a_moment(still: float) -> None:
    assert made_in(2.0, 100, still, 4) == 50.0  # as if they had taken a second
    assert made_in(2.0, 100, still - 10.0, 4) == pytest.approx(5.0)
    assert made_in(2.0, 100, float("inf"), 0) == 200.0


@pytest.mark.parametrize(
    ("seconds", "fed", "more", "exact", "found"),
    [
        (0.1, 4000, True, False, (64, 32)),  # it has just begun: as a worker at hand
        (20.0, 4000, True, False, (500, 1000)),  # half a second, and a second
        (20.0, 400, True, False, (100, 1000)),  # as much as the other workers
        (20.0, 40, True, False, (10, 1000)),
        (20.0, 400, False, False, (25, 25)),  # the last order: something is kept for whoever is done early
        (20.0, 4000, True, True, (64, 32)),  # several at once
    ],
)
def test_a_nodes_workers_share_its_orders(
    seconds: float, fed: int, more: bool, exact: bool, found: tuple[int, int], still: float
) -> None:
    source = Fed(0)
    source.since, source.exact, source.tally.episodes = still - seconds, exact, int(4000 * max(1.0, seconds))
    source.fed.feed(range(fed + 1), more)
    index = source.fed.take()
    assert index is not None
    source.fed.finish(index, 20)
    size, ahead = source.share(4)
    assert (size, ahead) == (pytest.approx(found[0], abs=1), pytest.approx(found[1], abs=1))


@pytest.mark.parametrize("size", [0, 1000, PIECE, 3 * PIECE, 24 * PIECE])
def test_an_answer_twice_as_large_as_the_last_fits_its_pieces(size: int) -> None:
    assert min(2 * size, 24 * PIECE) // PIECE <= values_for(size) <= max(1, 2 * size // PIECE)
    assert values_for(24 * PIECE + 1) == 1
