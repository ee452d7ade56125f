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
from treadle.evaluation.evaluate import evaluate
from treadle.reports.run import POINTS, Run, curve, share, spread
from treadle.worker.options import WorkerOptions
from typed_run import collected as typed


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


def told(model: Run) -> list[tuple[object, ...]]:
    return [(each.index, each.seed, each.total_reward, each.length, each.end, each.success) for each in model.outcomes]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "out"
    typed("CartPole-v1", episodes=12, out=out, workers=1, verify=2, max_episode_steps=30)
    return out


def test_a_dataset_is_told_as_h5py_reads_it(collected: Path) -> None:
    model, witness = Run(collected), stored(collected)
    assert [each.index for each in model.outcomes] == sorted(witness) == list(range(12))
    for each in model.outcomes:
        rewards = witness[each.index]["rewards"]
        assert (each.total_reward, each.length) == (rewards.sum(), len(rewards))
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
    assert (model.success, model.over, model.wanted, model.replayed) == (None, True, 12, [2, 0])


@pytest.mark.parametrize(
    "lost", [[".episodes"], [".episodes", "summary.json"], [".episodes", "summary.json", "run.json"]]
)
def test_a_directory_that_lacks_what_later_versions_write_is_told_alike(
    collected: Path, tmp_path: Path, lost: list[str]
) -> None:
    whole = told(Run(collected))
    out = shutil.copytree(collected, tmp_path / "out")
    for name in lost:
        (out / name).unlink()
    model = Run(out)
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
    model, witness = Run(out), stored(collected)
    assert not model.over
    assert told(model) == told(Run(collected))[:-1]
    for index, drawn in model.curves.items():
        assert drawn == curve(witness[index]["rewards"])
    assert len(model.curves) == 11


def test_an_evaluation_is_told_as_its_lines_and_h5py_have_it(tmp_path: Path) -> None:
    """Also where the files of names that begin with a dot have not been copied."""
    out = tmp_path / "out"
    evaluate("CartPole-v1", None, 9, 4, out=out, worker_options=WorkerOptions(backend="serial"), max_episode_steps=20)
    lines = [json.loads(each) for each in (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines()]
    keys = "index", "seed", "return", "length", "end", "success"
    assert told(Run(out)) == [tuple(each[key] for key in keys) for each in lines]
    assert [each.seconds for each in Run(out).outcomes] == [each["seconds"] for each in lines]
    (out / ".episodes").unlink()
    assert told(Run(out)) == [tuple(each[key] for key in keys) for each in lines]


def test_rates_and_curves_are_those_of_what_is_stored(tmp_path: Path) -> None:
    out = evaluation(tmp_path / "out", 40)
    run, witness = Run(out), stored(out)
    good = sum(each.success is True for each in run.outcomes)
    assert run.success is not None
    assert run.counted is not None
    assert (run.success.count, run.success.of) == (good, 38)
    assert (run.counted.count, run.counted.of) == (good, 40)
    assert run.left_out == [18, 37]
    assert run.causes == [("KeyError: 'corner' reach.py:31", [18, 37])]
    assert {each.index: each.total_reward for each in run.played} == {
        index: rows["rewards"].sum() for index, rows in witness.items()
    }
    for index, rows in witness.items():
        assert run.curves[index] == curve(rows["rewards"])


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
    assert spread([None, math.nan, math.inf]) is None
    assert spread([1e308] * 3) is None


def test_returns_that_are_no_numbers_are_flagged_and_in_no_mean(tmp_path: Path) -> None:
    text = [line(0, 2.0), line(1, math.nan), line(2, math.inf), line(3, 4.0), line(4, None)]
    model = Run(directory_of(tmp_path / "out", text))
    assert model.odd == [1, 2, 4]
    assert model.returns is not None
    assert (model.returns.mean, model.returns.count) == (3.0, 2)
    assert model.best == [3, 0]


def test_episodes_that_are_damaged_are_said_and_a_torn_one_is_not(tmp_path: Path) -> None:
    out = directory_of(tmp_path / "out", [line(i) for i in range(4)], arguments={"episodes": 5})
    kept = bytearray((out / ".episodes").read_bytes())
    each = (len(kept) - 16) // 4
    kept[16 + each + 30] ^= 1  # the second one's
    (out / ".episodes").write_bytes(kept[:-3])
    run = Run(out)
    assert [each.index for each in run.outcomes] == [0, 2]
    assert [each.text for each in run.remarks] == ["1 stored episodes are damaged"]
    assert (run.over, run.wanted) == (False, 5)


def test_causes_are_grouped_by_kind_and_line(tmp_path: Path) -> None:
    lines = [
        failing(0, "KeyError", "'a'", "reach.py:31"),
        failing(1, "KeyError", "'b'", "reach.py:31"),
        failing(2, "hang"),
        failing(3, "ValueError", "a: b", "env.py:2"),
    ]
    assert Run(directory_of(tmp_path / "out", lines)).causes == [
        ("KeyError reach.py:31", [0, 1]), ("hang", [2]), ("ValueError: a: b env.py:2", [3]),
    ]  # fmt: skip


def test_what_is_damaged_is_said(collected: Path, tmp_path: Path) -> None:
    out = shutil.copytree(collected, tmp_path / "out")
    for name in ("run.json", "summary.json", ".episodes"):
        (out / name).write_bytes(b"{")
    next(out.glob("treadle/*/data/*.hdf5")).write_bytes(b"no HDF5")
    with pytest.raises(UsageError, match="holds nothing of a run"):
        Run(out)
    shutil.copytree(collected / "treadle", out / "treadle", dirs_exist_ok=True)
    assert [each.text.partition(" could")[0] for each in Run(out).remarks] == ["summary.json", "run.json"]
    shutil.copytree(collected, out, dirs_exist_ok=True)
    next(out.glob("treadle/*/data/*.hdf5")).write_bytes(b"no HDF5")
    assert [each.text.partition(" could")[0] for each in Run(out).remarks] == ["main_data.hdf5"]
    assert told(Run(out)) == told(Run(collected))


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
    assert list(Run(out).curves) == [2]
    (out / "steps.hdf5").unlink()
    (out / "steps.hdf5").symlink_to(tmp_path / "private.hdf5")
    assert Run(out).curves == {}


def test_of_many_episodes_those_have_a_curve_that_a_reader_asks_for(tmp_path: Path) -> None:
    count = 1_500
    lines = [line(i, float(i), success=i % 2 == 0) for i in range(count)]
    out = directory_of(
        tmp_path / "out",
        lines,
        rewards={i: [float(i)] for i in range(count)},
        summary={"remarks": [{"text": "odd", "episodes": [1234]}]},
    )
    model = Run(out)
    assert {0, 1, 1234, 1499} <= set(model.curves)
    assert len(model.curves) <= 1_000
    assert model.remarks[0].episodes == (1234,)
