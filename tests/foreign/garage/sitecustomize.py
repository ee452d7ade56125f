"""Stand-ins for packages that garage imports and its tests of samplers do not use: TensorFlow, torch, Ray.

Python imports this file at its start where the folder is on PYTHONPATH, in workers too. An attribute of a stand-in is a
class that can be derived from, called, and used as a decorator.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = ("tensorflow", "tensorflow_probability", "torch", "ray", "setproctitle")


class Anything(type):
    """The class of stand-ins: whatever is asked of one of them is another one."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class StandIn(metaclass=Anything):
    """A class, a function, a decorator or a constant of a package that is not there."""

    def __new__(cls, *args, **kwargs):
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else super().__new__(cls)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class Empty(ModuleType):
    """A module of such a package."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class Finder(MetaPathFinder, Loader):
    """Finds every module of the packages in NAMES."""

    def find_spec(self, fullname, path=None, target=None):
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in NAMES else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        """It is empty."""


sys.meta_path.append(Finder())
