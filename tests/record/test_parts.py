"""What was added survives: kills, full disks, damage."""

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from treadle.play.episode import Episode
from treadle.record.journal import journals
from treadle.record.merge import load, merge
from treadle.record.minari import About
from treadle.record.parts import PartWriter, recover

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_parts import SPACES, episode
from treadle.record.parts import PartWriter
Path({path!r}).mkdir(exist_ok=True)
writer = PartWriter(Path({path!r}), {worker}, *SPACES)
for index in range({first}, {last}, {step}):
    note = writer.add(episode(index))
    print(note.index, note.digest, flush=True)
"""
SPACES = spaces.Box(0, 255, (64, 64), np.uint8), spaces.Discrete(9)


def episode(index: int) -> Episode:
    """A function of the index: small ones, and every seventh some 600 KB that do not compress."""
    rng = np.random.default_rng(index)
    steps = 150 if index % 7 == 6 else int(rng.integers(1, 6))
    ends = np.zeros(steps, bool)
    ends[-1] = True
    return Episode(
        index=index,
        seed=index + 10**12,
        observations=rng.integers(0, 255, (steps + 1, 64, 64), np.uint8),
        actions=rng.integers(0, 9, steps),
        rewards=rng.random(steps),
        terminated=ends,
        truncated=~ends & False,
        infos=tuple({"t": t} for t in range(steps + 1)),
    )


def spawn(path: Path, worker: int, first: int, last: int, step: int = 1, limit: int | None = None) -> subprocess.Popen:
    code = WRITER.format(
        here=str(Path(__file__).parent), path=str(path), worker=worker, first=first, last=last, step=step
    )

    def set_limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=set_limit if limit else None,
    )


def joined(parts: Path, out: Path):
    return merge(parts, out, recover(parts), About("e-p-v0", "p", *SPACES))


def test_a_kill_loses_nothing_that_was_added(tmp_path):
    """Writers killed at random moments, what is missing made again: the bytes of an uninterrupted run."""
    count, parts = 60, tmp_path / "parts"
    (tmp_path / "whole").mkdir()
    whole = PartWriter(tmp_path / "whole", 0, *SPACES)
    notes = [whole.add(episode(i)) for i in range(count)]
    whole.close()
    chance = random.Random(5)
    told: dict[int, str] = {}
    for first in (0, 20, 40):
        writer = spawn(parts, 1, first, count - 1)  # the last one is missing, however late they are killed
        for _ in range(chance.randrange(5, 15)):
            index, digest = writer.stdout.readline().split()
            told[int(index)] = digest
        writer.kill()
        rest = writer.stdout.read()
        whole_lines = rest[: rest.rfind("\n") + 1].splitlines()  # it may have been killed within one
        told.update((int(line.split()[0]), line.split()[1]) for line in whole_lines)
        writer.wait()
        writer.stdout.close()
        writer.stderr.close()
    kept = {note.index: note for note in recover(parts)}
    assert told.keys() <= kept.keys()
    assert len(kept) < count
    assert all(kept[i] == notes[i] for i in kept)
    assert list(recover(parts)) == [kept[i] for i in sorted(kept)]
    rest = PartWriter(parts, 1, *SPACES)
    for index in sorted(set(range(count)) - set(kept), reverse=True):
        rest.add(episode(index))
    rest.close()
    reports = joined(parts, tmp_path / "a"), joined(tmp_path / "whole", tmp_path / "b")
    files = [(report.path / "data" / "main_data.hdf5").read_bytes() for report in reports]
    assert files[0] == files[1]
    for got, index in zip(load(tmp_path / "a"), range(count), strict=True):
        assert got.observations.tobytes() == episode(index).observations.tobytes()


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_every_torn_tail_is_told(damage, tmp_path):
    (tmp_path / "p").mkdir()
    writer = PartWriter(tmp_path / "p", 0, *SPACES)
    sizes = []
    for index in range(3):
        writer.add(episode(index))
        (path,) = journals(tmp_path / "p")
        sizes.append(path.stat().st_size)
    writer.close()
    content = path.read_bytes()
    assert len(content) == sizes[2]
    for at in {sizes[1], sizes[1] + 1, sizes[1] + 27, sizes[1] + 100, (sizes[1] + sizes[2]) // 2, sizes[2] - 1}:
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.write_bytes(content[:at] if damage == "cut" else flipped)
        assert [note.index for note in recover(tmp_path / "p")] == [0, 1]
        assert path.stat().st_size == sizes[1]
    path.write_bytes(content[:16])
    assert recover(tmp_path / "p") == []
    assert not path.exists()


def test_a_full_disk_is_an_oserror_and_keeps_what_was_finished(tmp_path):
    writer = spawn(tmp_path / "p", 0, 0, 100, limit=300_000)
    out, error = writer.communicate()
    assert writer.returncode == 1
    assert "OSError" in error
    assert str(tmp_path / "p") in error.splitlines()[-1]
    assert "ulimit -f" in error.splitlines()[-1]
    told = [int(line.split()[0]) for line in out.splitlines()]
    assert told
    assert [note.index for note in recover(tmp_path / "p")] == told
    joined(tmp_path / "p", tmp_path / "out")
    assert load(tmp_path / "out")[len(told) - 1].rewards.tobytes() == episode(told[-1]).rewards.tobytes()


def test_a_writer_goes_on_after_a_failed_write(tmp_path):
    """As when somebody makes room: nothing torn lies between two episodes."""
    (tmp_path / "p").mkdir()
    writer = PartWriter(tmp_path / "p", 0, *SPACES)
    first = writer.add(episode(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (journals(tmp_path / "p")[0].stat().st_size + 1000, hard))
        with pytest.raises(OSError, match="worker-0") as caught:
            writer.add(episode(6))
        assert caught.value.filename == str(journals(tmp_path / "p")[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    second = writer.add(episode(6))
    writer.close()
    assert recover(tmp_path / "p") == [first, second]


def test_a_merge_that_fails_leaves_the_parts_and_no_dataset(tmp_path):
    (tmp_path / "p").mkdir()
    writer = PartWriter(tmp_path / "p", 0, *SPACES)
    note = writer.add(episode(6))
    writer.close()
    (tmp_path / "out").write_text("a file where a directory should be")
    with pytest.raises(OSError, match=r"out/treadle/e-p-v0"):
        joined(tmp_path / "p", tmp_path / "out")
    assert recover(tmp_path / "p") == [note]


def test_an_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        PartWriter(tmp_path / "file" / "parts", 0, *SPACES).add(episode(0))


def test_workers_never_share_a_file(tmp_path):
    writers = [PartWriter(tmp_path, worker, *SPACES) for worker in (0, 0, 1)]
    for writer in writers:
        writer.add(episode(3))
        writer.close()
    assert len(journals(tmp_path)) == 3
    assert [note.index for note in recover(tmp_path)] == [3]


def test_a_note_says_what_the_episode_is(tmp_path):
    writer = PartWriter(tmp_path, 0, *SPACES)
    one = episode(1)
    note, other = writer.add(one), writer.add(episode(2))
    writer.close()
    assert (note.index, note.seed, note.length, note.total_reward) == (1, one.seed, len(one), one.total_reward)
    assert (note.terminated, note.truncated) == (True, False)
    assert note.nbytes == one.nbytes + 8 * (len(one) + 1)
    assert len(bytes.fromhex(note.digest)) == 16
    assert note.digest != other.digest
    assert os.listdir(tmp_path) == ["worker-0-0.episodes"]


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "infos"])
def test_every_array_counts_in_the_digest(field, tmp_path):
    from dataclasses import replace

    one = episode(2)
    changed: dict = {
        "observations": one.observations ^ np.uint8(1),
        "actions": one.actions.astype(np.int32),
        "rewards": one.rewards + 1,
        "infos": tuple({"t": t + 1} for t in range(len(one) + 1)),
    }
    writer = PartWriter(tmp_path, 0, *SPACES)
    digests = {writer.add(e).digest for e in (one, replace(one), replace(one, **{field: changed[field]}))}
    writer.close()
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), "observations/a is a Sequence"),
        (spaces.Tuple((spaces.Graph(SPACES[0], None),)), "observations/_index_0 is a Graph"),
        (spaces.Dict({"a/b": spaces.Discrete(2)}), "observations/a/b: a key with '/'"),
    ],
)
def test_spaces_that_cannot_be_stored_are_named(space: gym.Space, message: str, tmp_path):
    with pytest.raises(TypeError, match=message):
        PartWriter(tmp_path, 0, space, SPACES[1])


def test_values_that_cannot_be_stored_are_named(tmp_path):
    from dataclasses import replace

    one, writer = episode(1), PartWriter(tmp_path, 0, *SPACES)
    for observations, error, message in (
        (["a\0"] * (len(one) + 1), ValueError, "NUL"),
        (one.observations[1:], ValueError, "rows where the episode has"),
        (np.zeros(len(one) + 1, complex), TypeError, "complex128"),
        ([object()] * (len(one) + 1), TypeError, "holds a object"),
    ):
        with pytest.raises(error, match=message):
            writer.add(replace(one, observations=observations))
    writer.close()
    assert recover(tmp_path) == []
