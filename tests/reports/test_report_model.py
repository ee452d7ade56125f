"""The numbers of a report equal those that h5py and a few lines of arithmetic give."""

import json
import math
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from reports.run_of import directory_of, evaluation, failing, line
from treadle.errors import UsageError
from treadle.record.dataset import collect_dataset
from treadle.reports.model import POINTS, Model, curve, model_of, paired, share, spread


def stored(path: Path) -> dict[int, dict[str, np.ndarray]]:
    """What the data file of a run holds, by index of the episode, read with h5py alone."""
    (found,) = [*path.glob("treadle/*/data/*.hdf5"), *path.glob("*.hdf5")]
    with h5py.File(found) as file:
        return {
            int(group.attrs["episode_index"]): {
                name: group[name][()] for name in group if name != "infos" and name != "observations"
            }
            for group in file.values()
        }


def told(model: Model) -> list[tuple[object, ...]]:
    return [(each.index, each.seed, each.returns, each.length, each.end, each.success) for each in model.episodes]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "out"
    collect_dataset("CartPole-v1", episodes=12, out=out, workers=1, verify=2, max_episode_steps=30)
    return out


def test_a_dataset_is_told_as_h5py_reads_it(collected: Path) -> None:
    model, witness = model_of(collected), stored(collected)
    assert [each.index for each in model.episodes] == sorted(witness) == list(range(12))
    for each in model.episodes:
        rewards = witness[each.index]["rewards"]
        assert (each.returns, each.length) == (rewards.sum(), len(rewards))
        assert each.end == ("terminated" if witness[each.index]["terminations"][-1] else "truncated")
        low, high = model.curves[each.index].low, model.curves[each.index].high
        points = np.frombuffer(model.curves[each.index].points, np.uint8) / 255 * (high - low) + low
        assert len(points) == min(POINTS, len(rewards))
        assert (points[0], points[-1]) == (pytest.approx(rewards[0], abs=high / 500), pytest.approx(rewards.sum()))
    returns = [witness[i]["rewards"].sum() for i in range(12)]
    assert model.returns is not None
    assert (model.returns.mean, model.returns.std) == (pytest.approx(np.mean(returns)), pytest.approx(np.std(returns)))
    assert (model.returns.least, model.returns.median, model.returns.most) == (
        min(returns), np.median(returns), max(returns),
    )  # fmt: skip
    assert model.returns.low < model.returns.mean < model.returns.high
    assert (model.success, model.over, model.wanted, model.replayed) == (None, True, 12, (2, 0))


@pytest.mark.parametrize(
    "lost", [[".episodes"], [".episodes", "summary.json"], [".episodes", "summary.json", "run.json"]]
)
def test_a_directory_that_lacks_what_later_versions_write_is_told_alike(
    collected: Path, tmp_path: Path, lost: list[str]
) -> None:
    whole = told(model_of(collected))
    out = shutil.copytree(collected, tmp_path / "out")
    for name in lost:
        (out / name).unlink()
    model = model_of(out)
    assert told(model) == whole
    assert len(model.curves) == 12


def test_a_run_that_was_killed_is_told_from_its_parts(collected: Path, tmp_path: Path) -> None:
    """Its journal ends in the middle of an episode."""
    from treadle.record.run_directory import RunDirectory

    out = shutil.copytree(collected, tmp_path / "out")
    data = next(out.glob("treadle/*/data/*.hdf5"))
    with RunDirectory(out) as place:
        place.reopen(data, [])
        place.reopened()
    shutil.rmtree(out / "treadle")
    for name in (".episodes", "summary.json"):
        (out / name).unlink()
    (journal,) = (out / ".parts").glob("worker-*")
    journal.write_bytes(journal.read_bytes()[:-100])
    model, witness = model_of(out), stored(collected)
    assert not model.over
    assert told(model) == told(model_of(collected))[:-1]
    for index, drawn in model.curves.items():
        assert drawn == curve(witness[index]["rewards"])
    assert len(model.curves) == 11


def test_an_evaluation_is_told_from_its_lines(tmp_path: Path) -> None:
    out = evaluation(tmp_path / "out", 40)
    model = model_of(out)
    lines = [json.loads(each) for each in (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert told(model) == [
        (each["index"], each["seed"], each["return"], each["length"], each["end"], each["success"]) for each in lines
    ]
    good = sum(each["success"] is True for each in lines)
    assert model.success is not None
    assert model.counted is not None
    assert (model.success.count, model.success.of) == (good, 38)
    assert (model.counted.count, model.counted.of) == (good, 40)
    assert model.left_out == [18, 37]
    assert [(str(each.cause), each.episodes) for each in model.groups] == [("KeyError: 'corner' reach.py:31", (18, 37))]
    for index, rows in stored(out).items():
        assert model.curves[index] == curve(rows["rewards"])


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    """18 of 50: Brown, Cai and DasGupta (2001), equation 4, with z = 1.96."""
    found = share(18, 50)
    assert found is not None
    z, n, p = 1.959964, 50, 18 / 50
    centre, half = (
        (p + z * z / (2 * n)) / (1 + z * z / n),
        z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)),
    )
    assert (found.low, found.high) == (pytest.approx(centre - half, abs=1e-6), pytest.approx(centre + half, abs=1e-6))
    assert share(0, 0) is None


def test_a_histogram_counts_everything_once() -> None:
    rng = np.random.default_rng(0)
    for values in (
        rng.normal(size=1000),
        rng.integers(0, 9, 50),
        [3.0],
        [1e300, -1e300],
        [5.0, 5.0 + 1e-15],
        [1e17] * 3,
    ):
        found = spread([float(each) for each in values])
        assert found is not None
        assert sum(found.bins) == len(values)
        assert len(found.edges) == len(found.bins) + 1
        assert all(math.isfinite(each) for each in found.edges)
    assert spread([None, math.nan, math.inf]) is None
    assert spread([1e308] * 3) is None


def test_returns_that_are_no_numbers_are_flagged_and_in_no_mean(tmp_path: Path) -> None:
    text = [line(0, 2.0), line(1, math.nan), line(2, math.inf), line(3, 4.0), line(4, None)]
    model = model_of(directory_of(tmp_path / "out", text))
    assert model.odd == (1, 2, 4)
    assert model.returns is not None
    assert (model.returns.mean, model.returns.count) == (3.0, 2)
    assert model.best == [3, 0]


def test_lines_that_cannot_be_read_are_said_and_a_torn_one_is_not(tmp_path: Path) -> None:
    out = directory_of(tmp_path / "out", [line(i) for i in range(3)], arguments={"episodes": 5})
    with (out / "episodes.jsonl").open("a", encoding="utf-8") as file:
        file.write('no JSON\n[]\n{"index": 1e400}\n' + json.dumps(line(1, 7.0)) + '\n{"index": 3, "ret')
    model = model_of(out)
    assert [(each.index, each.returns) for each in model.episodes] == [(0, 1.0), (1, 7.0), (2, 1.0)]
    assert [each.text for each in model.remarks] == ["3 lines of episodes.jsonl could not be read"]
    assert (model.over, model.wanted) == (False, 5)


def test_causes_are_grouped_by_kind_and_line(tmp_path: Path) -> None:
    lines = [
        failing(0, "KeyError: 'a' reach.py:31"),
        failing(1, "KeyError: 'b' reach.py:31"),
        failing(2, "hang"),
        failing(3, "ValueError: a: b (env.py:2)"),
    ]
    groups = model_of(directory_of(tmp_path / "out", lines)).groups
    assert [(str(each.cause), each.episodes) for each in groups] == [
        ("KeyError reach.py:31", (0, 1)), ("hang", (2,)), ("ValueError: a: b env.py:2", (3,)),
    ]  # fmt: skip


def test_what_is_damaged_is_said(collected: Path, tmp_path: Path) -> None:
    out = shutil.copytree(collected, tmp_path / "out")
    for name in ("run.json", "summary.json", ".episodes"):
        (out / name).write_bytes(b"{")
    next(out.glob("treadle/*/data/*.hdf5")).write_bytes(b"no HDF5")
    with pytest.raises(UsageError, match="holds nothing of a run"):
        model_of(out)
    (out / "episodes.jsonl").write_text(json.dumps(line(0)), encoding="utf-8")
    remarks = [each.text.partition(" could")[0] for each in model_of(out).remarks]
    assert {"run.json", "summary.json", "main_data.hdf5"} <= set(remarks)


def test_data_of_another_file_is_not_read(tmp_path: Path) -> None:
    """A stranger's file may hold links to files of whoever reads it."""
    with h5py.File(tmp_path / "private.hdf5", "w") as file:
        file["rewards"] = np.arange(4.0)
    out = directory_of(tmp_path / "out", [line(i) for i in range(3)], rewards={2: [1.0, 2.0]})
    with h5py.File(out / "steps.hdf5", "a") as file:
        file.move("episode_0", "episode_2")
        file["episode_0"] = h5py.ExternalLink(str(tmp_path / "private.hdf5"), "/")
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "private.hdf5"), "rewards", (4,))
        file.create_group("episode_1").create_virtual_dataset("rewards", layout)
    assert list(model_of(out).curves) == [2]
    (out / "steps.hdf5").unlink()
    (out / "steps.hdf5").symlink_to(tmp_path / "private.hdf5")
    assert model_of(out).curves == {}


def test_of_many_episodes_those_have_a_curve_that_a_reader_asks_for(tmp_path: Path) -> None:
    count = 1_500
    lines = [line(i, float(i), success=i % 2 == 0) for i in range(count)]
    out = directory_of(
        tmp_path / "out",
        lines,
        rewards={i: [float(i)] for i in range(count)},
        summary={"remarks": [{"text": "odd", "episodes": [1234]}]},
    )
    model = model_of(out)
    assert {0, 1, 1234, 1499} <= set(model.curves)
    assert len(model.curves) <= 1_000
    assert model.remarks[0].episodes == (1234,)


def test_pairs_are_of_equal_seeds(tmp_path: Path) -> None:
    first = [
        line(0, 3.0, seed=1, success=True),
        line(1, 2.0, seed=2, success=False),
        line(2, 2.0, seed=3, success=True),
        line(9, 1.0, seed=9),
    ]
    second = [
        line(0, 2.0, seed=3, success=True),
        line(1, 5.0, seed=2, success=True),
        line(2, 1.0, seed=1, success=False),
        failing(3, "hang"),
    ]
    a, b = (model_of(directory_of(tmp_path / name, rows)) for name, rows in (("a", first), ("b", second)))
    pairs = paired(a, b)
    assert [(x.index, y.index) for x, y in pairs.pairs] == [(0, 2), (1, 1), (2, 0)]
    assert (pairs.wins, pairs.ties, pairs.losses, pairs.only_first, pairs.only_second) == (1, 1, 1, 1, 1)
    assert pairs.difference is not None
    assert pairs.difference.mean == pytest.approx(-1 / 3)
    other = model_of(directory_of(tmp_path / "c", [line(0, seed=77)]))
    with pytest.raises(UsageError, match="no episode of the same seed"):
        paired(a, other)
