"""`treadle info`: what it says of a machine, and what each remark follows from."""

import json
import re
import socket
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.main import main
from treadle.testing.machine import in_words, remarks, seen

SOUND: dict[str, Any] = {
    "system": "Linux 6.1 x86_64",
    "python": "CPython 3.12.1",
    "packages": {"numpy": "2.1", "torch": None, "threadpoolctl": None},
    "extras": {"cli": {"typer": "0.12", "rich": "13"}, "data": {"minari": None, "h5py": "3.1"}},
    "cores": {"of_the_machine": 8, "usable": 8, "quota": None, "used_by_others": 0.1},
    "memory_available": 2**34,
    "shared_memory": {"size": 2**33, "free": 2**33},
    "descriptors": {"soft": 1024, "hard": None},
    "start_methods": ["forkserver", "spawn", "fork"],
    "memory_files": True,
    "scheduler_statistics": True,
    "threads": {"OMP_NUM_THREADS": None, "OMP_WAIT_POLICY": None},
    "graphics": False,
    "traced": False,
}


@pytest.mark.parametrize(
    ("changed", "level", "what", "remedy"),
    [
        ({"cores": {"quota": 2}}, "slow", "grants 2 of 8 cores", "OMP_NUM_THREADS=2"),
        ({"cores": {"usable": 1}}, "slow", "one core", "workers='auto'"),
        ({"cores": {"used_by_others": 3.0}}, "slow", "other programs use 3.0 of 8 cores", "end them"),
        ({"threads": {"OMP_NUM_THREADS": "64"}}, "slow", "OMP_NUM_THREADS=64, and 8 cores", "set them to 8"),
        ({"packages": {"torch": "2.5"}}, "slow", "torch", "torch.set_num_threads(1)"),
        ({"scheduler_statistics": False}, "slow", "schedstat", "workers="),
        ({"traced": True}, "slow", "development mode", "plain interpreter"),
        ({"shared_memory": None}, "unsafe", "there is no /dev/shm", "--shm-size"),
        ({"shared_memory": {"size": 2**26}}, "unsafe", "/dev/shm has 67.1 MB", "--shm-size"),
        ({"descriptors": {"soft": 256}}, "unsafe", "256 files may be open", "ulimit -n"),
        ({"memory_available": 2**28}, "unsafe", "of memory are left", "fewer workers"),
        ({"start_methods": ["spawn", "fork"]}, "unsafe", "Linux alone", "container"),
    ],
)
def test_each_remark_has_its_cause_and_its_remedy(changed: dict[str, Any], level: str, what: str, remedy: str) -> None:
    found = deepcopy(SOUND)
    for name, value in changed.items():
        found[name] = {**found[name], **value} if isinstance(value, dict) else value
    (remark,) = remarks(found)
    assert remark[0] == level
    assert what in remark[1]
    assert remedy in remark[2]


@pytest.mark.parametrize(
    "changed",
    [{}, {"packages": {"torch": "2.5"}, "graphics": True}, {"descriptors": {"soft": None}, "memory_available": None}],
)
def test_a_sound_machine_has_no_remark(changed: dict[str, Any]) -> None:
    assert list(remarks({**SOUND, **changed})) == []


def test_words_name_what_is_missing() -> None:
    words = in_words(SOUND)
    assert words["extras"] == "cli"
    assert words["not there"] == "data (minari)"
    assert words["descriptors"] == "1024 (hard limit none)"
    assert "pip install threadpoolctl" in words["threads"]


def test_what_is_seen_of_this_machine() -> None:
    found = seen()
    assert found.keys() == SOUND.keys()
    assert all(found["packages"][name] for name in ("numpy", "gymnasium", "cloudpickle"))
    assert found["extras"]["cli"].keys() == {"typer", "rich"}


def test_the_command_prints_json_and_names_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["info", "--json"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert json.loads(printed)["details"]["python"].startswith("CPython")
    assert str(Path.home()) not in printed
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", printed)
