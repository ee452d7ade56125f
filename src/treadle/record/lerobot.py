"""Datasets in LeRobot's format, v3.0. The only file that imports pyarrow.

LeRobot 0.4 reads this layout: `data/` has a row for each step in Parquet files. `videos/<key>/` has the pictures as
mp4, many episodes one after another in a file. `meta/info.json` lists the features, `meta/episodes/` the place of each
episode, `meta/tasks.parquet` the tasks, `meta/stats.json` statistics of values, for normalising.

A row has an observation and the action after it. The last observation has no row, as no action follows.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from treadle.errors import UsageError, needed
from treadle.record.merge import load
from treadle.record.video import mp4_writer
from treadle.sample.card import CARD, OF_LEROBOT, card
from treadle.spaces import Layout

FILE_FRAMES = 20_000  # of whole episodes, in one file
AT = "chunk-{chunk_index:03d}/file-{file_index:03d}"
PLACES = {"agent_pos": "observation.state", "pixels": "observation.image"}  # names that LeRobot's environments use
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
KEPT = {"timestamp": "float32", **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")}


@dataclass(frozen=True)
class Exported:
    """The written dataset. `left_out`: parts of observations and actions without a fixed shape, which it lacks."""

    path: Path
    episodes: int
    frames: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Feature:
    """A column of the dataset: `path` leads to its values in an episode's tree."""

    key: str
    path: tuple[Any, ...]
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def video(self) -> bool:
        return self.dtype == np.uint8 and len(self.shape) == 3 and self.shape[2] == 3

    def of(self, tree: Any, frames: int) -> np.ndarray:
        """Its first `frames` values."""
        for key in self.path:
            tree = tree[key]
        return np.asarray(tree)[:frames].reshape(frames, *self.shape)


def export_lerobot(source: str | Path, out: str | Path, *, fps: int = 30, task: str | None = None) -> Exported:
    """Write the Minari dataset of a run as a LeRobotDataset.

    Pictures (uint8[height, width, 3]) become videos (H.264, a key frame every other frame): nearly what they were, not
    bit by bit. All else is stored as it is. `pixels` is "observation.image", a single vector or `agent_pos` is
    "observation.state". Other parts are "observation.<name>", other pictures "observation.images.<name>".

    Args:
        source: the run's directory, or that of any Minari dataset.
        out: a directory that is not there yet.
        fps: steps a second, which decide the timestamps; datasets do not hold them.
        task: the task in words; None: the environment's id.

    Raises:
        UsageError: `out` exists, `source` is not a dataset, or has no episodes.
        MissingExtra: no pyarrow, or no imageio-ffmpeg where there are pictures.
    """
    try:
        data, out = load(source), Path(out)
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already: give a directory that is not")
    if fps < 1:
        raise UsageError(f"fps is a whole number of steps a second, got {fps}")
    seen, left_out = _features(data.observation_space, "observation")
    done, more_left_out = _features(data.action_space, "action")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    writer = _Writer(partial, seen, done, fps)
    if task is None:
        task = getattr(getattr(data, "env_spec", None), "id", None) or str(data.id)
    try:
        for episode in data.iterate_episodes():
            writer.add(episode)
        writer.close(task)
    finally:
        writer.end_files()
    if out.exists():
        out.rmdir()
    partial.rename(out)
    return Exported(out, len(writer.episodes), writer.frames, (*left_out, *more_left_out))


def _features(space: gym.Space, root: str) -> tuple[list[Feature], list[str]]:
    """Those of a space, and what is left out of it."""
    found, left_out = [], []
    for leaf in Layout.of(space).leaves:
        name = ".".join(map(str, leaf.path)).replace("/", "_")
        if leaf.dtype is None or leaf.shape is None:
            left_out.append(f"{root}.{name}" if name else root)
            continue
        feature = Feature("", leaf.path, leaf.dtype, leaf.shape or (1,))
        if root == "action":
            key = f"action.{name}" if name else "action"
        elif name in PLACES or not name:
            key = PLACES.get(name, PLACES["pixels" if feature.video else "agent_pos"])
        elif feature.video:
            key = f"observation.images.{name.removeprefix('pixels.')}"
        else:
            key = f"observation.{name}"
        found.append(Feature(key, leaf.path, leaf.dtype, feature.shape))
    return found, left_out


class _Writer:
    """Writes a dataset, episode by episode."""

    def __init__(self, root: Path, seen: list[Feature], done: list[Feature], fps: int) -> None:
        with needed("LeRobot's format needs pyarrow", "lerobot"):
            import pyarrow
            import pyarrow.parquet
        self._pa: Any = pyarrow
        self._root, self._numbers, self._done, self._fps = root, [each for each in seen if not each.video], done, fps
        self._videos = [each for each in seen if each.video]
        self.frames = self._file = self._in_file = 0
        self.episodes: list[dict[str, Any]] = []
        self._open: dict[str, Any] = {}  # the present files, by what is in them
        self._features: dict[str, Any] = {}
        self._values: dict[str, list[np.ndarray]] = {}  # of all episodes: columns of numbers, histograms of pictures

    def add(self, episode: Any) -> None:
        length, index, fps = len(episode.rewards), len(self.episodes), self._fps
        if self._in_file and self._in_file + length > FILE_FRAMES:
            self.end_files()
        steps, ends = np.arange(length), np.asarray(episode.terminations) | np.asarray(episode.truncations)
        columns = {each.key: each.of(episode.observations, length) for each in self._numbers}
        columns |= {each.key: each.of(episode.actions, length) for each in self._done}
        columns |= {"next.reward": np.asarray(episode.rewards, np.float32)[:, None], "next.done": ends[:, None]}
        of_all = (steps / fps, steps, np.full(length, index), self.frames + steps, np.zeros(length))
        columns |= {key: each.astype(dtype)[:, None] for (key, dtype), each in zip(KEPT.items(), of_all, strict=True)}
        self.episodes.append({"episode_index": index, "length": length, "tasks": None})
        told, at = self.episodes[-1], {"chunk_index": 0, "file_index": self._file}
        told |= {"dataset_from_index": self.frames, "dataset_to_index": self.frames + length}
        for key, column in columns.items():
            self._features[key] = {"dtype": str(column.dtype), "shape": column.shape[1:], "names": None}
            self._keep(key, column, _stats(column))
        for feature in self._videos:
            pictures = feature.of(episode.observations, length)
            histogram = np.stack([np.bincount(pictures[..., k].ravel(), minlength=256) for k in range(3)])
            self._keep(feature.key, histogram, _picture_stats(histogram, length))
            self._film(feature, pictures)
            span = {"from_timestamp": self._in_file / fps, "to_timestamp": (self._in_file + length) / fps}
            told |= {f"videos/{feature.key}/{name}": value for name, value in {**at, **span}.items()}
        told |= {f"{of}/{name}": value for of in ("data", "meta/episodes") for name, value in at.items()}
        told |= {"meta/episodes/file_index": 0}
        table = self._pa.table({key: self._column(column) for key, column in columns.items()})
        if "data" not in self._open:
            path = self._path("data", "parquet")
            self._open["data"] = self._pa.parquet.ParquetWriter(path, table.schema)
        self._open["data"].write_table(table)
        self.frames += length
        self._in_file += length

    def close(self, task: str) -> None:
        """Write the files about all episodes. Raises UsageError without an episode."""
        if not self.episodes:
            raise UsageError("a LeRobotDataset has at least one episode, and this one has none")
        frames, episodes = self.frames, len(self.episodes)
        self.end_files()
        info = {
            "codebase_version": "v3.0",
            "robot_type": None,
            **{"total_episodes": episodes, "total_frames": frames, "total_tasks": 1},
            **{"chunks_size": 1000, "data_files_size_in_mb": 100, "video_files_size_in_mb": 200},
            "fps": self._fps,
            "splits": {"train": f"0:{episodes}"},
            "data_path": f"data/{AT}.parquet",
            "video_path": f"videos/{{video_key}}/{AT}.mp4" if self._videos else None,
            "features": self._features,
        }
        videos = {each.key for each in self._videos}
        stats = {
            key: _picture_stats(sum(values), frames) if key in videos else _stats(np.concatenate(values))  # type: ignore[arg-type]  # of arrays
            for key, values in self._values.items()
        }
        for name, told in (("info", info), ("stats", stats)):
            (self._root / "meta").mkdir(exist_ok=True)
            (self._root / "meta" / f"{name}.json").write_text(json.dumps(told, indent=4), encoding="utf-8")
        for each in self.episodes:
            each["tasks"] = [task]
        self._file = 0
        self._pa.parquet.write_table(self._pa.Table.from_pylist(self.episodes), self._path("meta/episodes", "parquet"))
        # as pandas writes a frame whose index is the text, which is how LeRobot reads it
        column = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"}
        about = {"index_columns": ["task"], "column_indexes": [], "columns": [column], "pandas_version": "2.0.0"}
        tasks = self._pa.table({"task_index": [0], "task": [task]})
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(about)})
        self._pa.parquet.write_table(tasks, self._root / "meta" / "tasks.parquet")
        rows = [("task", task), ("episodes", f"{episodes:,}"), ("steps", f"{frames:,}"), ("steps/s", f"{self._fps}")]
        text = card(task, rows, frames, OF_LEROBOT, ["LeRobot", "robotics"], "data/*/*.parquet")
        (self._root / CARD).write_text(text, encoding="utf-8")

    def _keep(self, key: str, values: np.ndarray, stats: dict[str, Any]) -> None:
        self._values.setdefault(key, []).append(values)
        self.episodes[-1] |= {f"stats/{key}/{name}": value for name, value in stats.items()}

    def _film(self, feature: Feature, pictures: np.ndarray) -> None:
        height, width, _ = feature.shape
        form = "yuv444p" if height % 2 or width % 2 else "yuv420p"
        if feature.key not in self._open:
            path = self._path(f"videos/{feature.key}", "mp4")
            known = {"codec": "h264", "pix_fmt": form, "height": height, "width": width, "fps": self._fps}
            told = {f"video.{name}": value for name, value in known.items()}
            told |= {"video.channels": 3, "video.is_depth_map": False, "has_audio": False}
            names = ["height", "width", "channels"]
            self._features[feature.key] = {"dtype": "video", "shape": feature.shape, "names": names, "info": told}
            form_and_quality = {"pix_fmt_out": form, "quality": None, "output_params": ["-crf", "18", "-g", "2"]}
            self._open[feature.key] = mp4_writer(path, (width, height), self._fps, **form_and_quality)
        for picture in pictures:
            self._open[feature.key].send(np.ascontiguousarray(picture))

    def end_files(self) -> None:
        """End the files that are being written; what comes goes to the next ones."""
        with ExitStack() as stack:  # all of them, also where one raises
            for each in self._open.values():
                stack.callback(each.close)
            self._open = {}
        self._file, self._in_file = self._file + 1, 0

    def _path(self, folder: str, kind: str) -> Path:
        path = self._root / folder / f"{AT.format(chunk_index=0, file_index=self._file)}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _column(self, column: np.ndarray) -> Any:
        """[T, 1] as numbers, [T, n, ...] as lists."""
        if column.shape[1:] == (1,):
            return self._pa.array(column[:, 0])
        array = self._pa.array(column.reshape(-1))
        for size in reversed(column.shape[1:]):
            array = self._pa.FixedSizeListArray.from_arrays(array, size)
        return array


def _stats(column: np.ndarray) -> dict[str, Any]:
    """Return the statistics of values, element by element."""
    values = column.astype(np.float64)
    found = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    found |= {name: np.quantile(values, q, axis=0) for name, q in QUANTILES.items()}
    return {**{name: value.tolist() for name, value in found.items()}, "count": [len(values)]}


def _picture_stats(histogram: np.ndarray, count: int) -> dict[str, Any]:
    """The same of pictures by channel, as numbers from 0 to 1, from how often each value is there (int[3, 256])."""
    values, sums = np.arange(256) / 255, np.cumsum(histogram, axis=1)
    shares = histogram / sums[:, -1:]
    mean = shares @ values
    found = {"mean": mean, "std": np.sqrt(np.maximum(shares @ values**2 - mean**2, 0))}
    found |= {"min": values[(histogram > 0).argmax(1)], "max": values[255 - (histogram[:, ::-1] > 0).argmax(1)]}
    found |= {name: values[(sums < q * sums[:, -1:]).sum(1)] for name, q in QUANTILES.items()}
    return {**{name: value.reshape(3, 1, 1).tolist() for name, value in found.items()}, "count": [count]}
