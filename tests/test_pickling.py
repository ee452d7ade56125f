"""What travels by value: classes that nobody may change."""

from __future__ import annotations

import abc
import os
import pickle
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from treadle import pickling


class Frozen(abc.ABCMeta):
    """As AllenAct's metaclass of experiments: attributes of classes are there to stay."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if not name.startswith(("_abc", "__abstract")):  # its base class sets these
            raise RuntimeError("Cannot edit class-level attributes.")
        super().__setattr__(name, value)


def test_a_class_that_nobody_may_change() -> None:
    class Base(metaclass=Frozen):
        steps: ClassVar[int] = 3

        @abc.abstractmethod
        def make(self) -> int:
            """What there is to make."""

    class Config(Base):
        @classmethod
        def double(cls) -> int:
            return 2 * cls.steps

        def make(self) -> int:
            return super().make() or self.double() + 1  # type: ignore[safe-super]

    Base.register(int)
    found = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=pickling.dumps((Config, Base)),
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},  # the metaclass itself goes by reference
    )
    assert found.stdout.decode().split() == ["6", "7", "True", "kept", "abstract"]


ELSEWHERE = """
import pickle, sys
Config, Base = pickle.load(sys.stdin.buffer)
print(Config.double(), Config().make(), isinstance(1, Base))
try:
    Config.steps = 4
except RuntimeError:
    print("kept")
try:
    Base()
except TypeError:
    print("abstract")
"""


def test_an_enum_by_value() -> None:
    class Colour(Enum):
        RED = 1

        def twice(self) -> int:
            return 2 * self.value

    assert pickle.loads(pickling.dumps(Colour.RED)).twice() == 2


def test_code_by_value_keeps_the_name_of_its_file() -> None:
    def outer() -> Any:
        return lambda: None

    loaded = pickle.loads(pickling.dumps(outer))
    assert loaded.__code__.co_filename == loaded().__code__.co_filename == __file__
    assert loaded.__code__.co_firstlineno == outer.__code__.co_firstlineno
