"""The parts of task vectors that need no worker: rows, histories, tiles, arguments."""

from __future__ import annotations

import copy
import pickle
import queue
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs

from treadle.errors import UsageError
from treadle.spaces import Layout
from treadle.tasks import arguments
from treadle.tasks.orders import NOTHING, History, Note
from treadle.tasks.rows import (
    WIDEST,
    Anything,
    Code,
    action_rows,
    action_writer,
    blank,
    fitting,
    row_mender,
    row_splitter,
)
from treadle.tasks.vector import LATEST, MetricsQueue
from treadle.tasks.vectors import VectorSampledTasks, tile


def test_a_queue_that_nobody_reads_keeps_the_latest() -> None:
    waiting = MetricsQueue()
    for each in range(LATEST + 5):
        waiting.put_nowait(each)
    assert waiting.qsize() == LATEST
    assert waiting.get_nowait() == 5


def test_actions_of_any_kind_come_out_as_they_went_in() -> None:
    layout = Layout.of(action_rows())
    arrays = [np.zeros(5, np.int64), None]
    write, reader = action_writer(arrays), layout.batch_reader(arrays, 0, 5)

    def read(mailed: Any = None) -> list[Any]:
        return reader(mailed or {1: [None] * 5})

    assert write([0, 3, -7, WIDEST - 1, Code.IDLE]) is None
    assert read() == [(0, None), (3, None), (-7, None), (WIDEST - 1, None), (int(Code.IDLE), None)]
    anything = [True, 2**70, [1, 2], None, 4]
    mailed = write(anything)
    assert mailed is not None
    came = [value if code == Code.MAILED else code for code, value in read(mailed)]
    assert came == anything
    assert came[0] is True


NESTED = gs.Dict(
    {
        "a": gs.Box(0, 1, (2,), np.float32),
        "b": gs.Dict({"n": gs.Discrete(5), "s": gs.Box(0, 1, (), np.float64)}),
        "t": gs.Tuple((gs.Text(5), gs.MultiBinary(3))),
    }
)


def good() -> dict[str, Any]:
    return {
        "a": np.zeros(2, np.float32),
        "b": {"n": 3, "s": np.array(0.5)},
        "t": ("hi", np.ones(3, np.int8)),
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("a",), np.zeros(2)),
        (("a",), np.zeros((1, 2), np.float32)),
        (("a",), [0.0, 0.0]),
        (("a",), None),
        (("b", "n"), np.int64(3)),
        (("b", "n"), True),
        (("b", "n"), 2**70),
        (("b", "s"), 0.5),
        (("b", "s"), np.float64(0.5)),
        (("b",), {"n": 3}),
        (("b",), {"n": 3, "x": 1}),
        (("t",), ["hi", np.ones(3, np.int8)]),
    ],
)
def test_what_does_not_fit_exactly_is_not_put_into_rows(path: tuple[str, ...], value: Any) -> None:
    fits = fitting(Layout.of(NESTED))
    assert fits(good())
    bad = good()
    inner = bad
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert not fits(bad)


@pytest.mark.parametrize("space", [NESTED, gs.Discrete(3), gs.Box(0, 1, (), np.float32), gs.Dict({}), Anything()])
def test_a_blank_fits_and_rows_come_apart(space: Any) -> None:
    layout = Layout.of(space)
    empty = blank(layout)
    assert fitting(layout)(empty)
    batch = layout.unflatten(
        [np.zeros((3, *(leaf.shape or ())), leaf.dtype) if leaf.fixed else [None] * 3 for leaf in layout.leaves]
    )
    rows = row_splitter(layout, 3)(batch)
    assert len(rows) == 3
    for row in rows:
        assert fitting(layout)(row)
        np.testing.assert_equal(row, empty)


def test_a_terminal_row_has_its_numbers_back() -> None:
    layout = Layout.of(NESTED)
    mended = row_mender(layout)({**good(), "b": {"n": np.array(3), "s": np.array(0.5)}})
    assert type(mended["b"]["n"]) is int
    plain = {"a": np.zeros(2)}
    assert row_mender(Layout.of(gs.Dict({"a": NESTED["a"]})))(plain) is plain


def test_a_history_is_short_and_whole() -> None:
    history = History()
    history.handed()
    history.handed(3)
    history.handed(0)
    assert history.events == [("next", 5)]
    history.seeded(4)
    history.handed()
    assert (history.tasks, history.seed) == (6, 4)
    history.reset()
    assert history.events == [("seed", 4), ("reset", 0)]
    history.handed()
    other = history.copy()
    other.handed()
    assert (history.tasks, other.tasks) == (1, 2)
    fresh = History()
    fresh.reset()
    assert (fresh.events, fresh.seed) == ([("reset", 0)], None)


def test_a_note_knows_whether_it_says_anything() -> None:
    assert Note().empty
    for said in (Note(observation=None), Note(reward=[1]), Note(ends=(False, False)), Note(done=True)):
        assert not said.empty
    assert pickle.loads(pickle.dumps(Note())).observation is NOTHING
    assert copy.deepcopy(Note()).final is NOTHING


def test_tiles() -> None:
    images = [np.full((2, 3, 3), i + 1, np.uint8) for i in range(5)]
    image = tile(images)
    assert image.shape == (6, 6, 3)
    assert image[::2, ::3, 0].tolist() == [[1, 2], [3, 4], [5, 0]]
    mixed = tile([np.full((2, 2), 7, np.uint8), np.full((4, 1, 3), 9, np.uint8)])
    assert mixed.shape == (8, 2, 3)
    assert mixed[0, 0].tolist() == [7, 7, 7]
    assert mixed[2:4].max() == 0
    assert mixed[4:, 0].min() == 9
    assert tile(images[:1]).shape == (2, 3, 3)
    with pytest.raises(UsageError, match="nothing to render"):
        tile([])
    with pytest.raises(UsageError, match="picture 1 has 4 channels"):
        tile([images[0], np.zeros((2, 2, 4), np.uint8)])
    with pytest.raises(UsageError, match="picture 0 is"):
        tile([np.zeros(3)])


def test_limits_and_counts() -> None:
    assert arguments.start_limit(120, 60) == 300
    assert arguments.start_limit(120, 10) == 120
    assert arguments.start_limit(120, None) == 120
    for wrong in (-1, 0, "60"):
        with pytest.raises(UsageError, match=f"read_timeout must be more than 0 seconds or None, got {wrong!r}"):
            arguments.start_limit(120, wrong)
    assert [arguments.worker_count(p, 4) for p in (None, 1, 3, 9)] == [4, 1, 3, 4]
    with pytest.raises(UsageError, match="max_processes"):
        arguments.worker_count(True, 4)
    with pytest.raises(UsageError, match="must be a dict"):
        arguments.sampler_args([{}, 3])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="must be callable"):
        VectorSampledTasks("sampler", [{}])  # type: ignore[arg-type]
    assert arguments.callback_suite([]) is None


def test_a_full_queue_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    from small_tasks import samplers, vector

    full: Any = queue.Queue(maxsize=1)
    with vector("single", samplers(3, steps=1), metrics_out_queue=full) as vec:
        results = vec.step([1, 1, 1])
    assert full.get_nowait()["task_info"]["number"] == 1
    assert full.empty()
    assert all("__AFTER_TASK_METRICS__" in r.info for r in results)
    assert caplog.text.count("metrics_out_queue is full") == 1


def test_a_window_needs_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from small_tasks import samplers, vector

    from treadle.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "cv2", None)
    with vector("single", samplers(2)) as vec, pytest.raises(MissingExtra, match="opencv"):
        vec.render()
