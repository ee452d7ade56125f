"""Where a policy is asked: in the workers, each by itself, or in the caller, about many environments at once."""

from __future__ import annotations

import ast
import importlib.util
import io
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from treadle import pickling
from treadle.checks import check_whole
from treadle.errors import UsageError
from treadle.play.recipe import CallerInference, Inference
from treadle.program.saved import ENDING

log = logging.getLogger("treadle")

ROWS = 8  # that an evaluation asks a network about
WAIT = 0.02  # seconds for a batch to become full: a call for 7 rows costs as much as one for 8
HERE = ("where", "pad_to")  # what is said of a policy in the workers, too
LARGE = 256 << 20  # bytes from which on a policy is not sent to the workers
ENVS_PER_WORKER = 8  # environments a worker plays for a policy in the caller, unless somebody says how many


def asking_of(
    policy: Any, given: Inference | str, num_envs: int | None, workers: int | str
) -> tuple[CallerInference | None, int | str, int]:
    """Return how the policy is asked in the caller (None: in the workers), the number of workers, and the environments
    of each worker.

    Args:
        policy: as `collect` takes it.
        given: where the policy is asked; "auto": `asked_in_caller` decides.
        num_envs: environments that are played at a time; None: one a worker, or `ENVS_PER_WORKER` for a policy in the
            caller.
        workers: a number, or "auto".

    Raises:
        UsageError: contradictory arguments.
    """
    inference = Inference.of(given)
    check_whole(num_envs=num_envs)
    nobody = policy is None or (isinstance(policy, str) and policy == "random")
    why = None
    if inference.where == "auto" and not nobody:
        why = asked_in_caller(policy)
        if why is not None:
            log.info("the policy is asked in the caller (inference='caller'): %s", why)
    # on a node: in the process that is the caller there
    if inference.where in ("caller", "node") or why is not None:
        if nobody:
            raise UsageError("random actions are drawn in the workers: inference='caller' is for a policy")
        return CallerInference(policy, num_envs, **vars(inference)), workers, 1
    if own := [name for name, value in vars(inference).items() if name not in HERE and value is not None]:
        raise UsageError(
            f"{own[0]} is for a policy that is asked in the caller: Inference(where='caller', {own[0]}=...)"
        )
    if inference.pad_to is not None:
        if num_envs is not None:
            raise UsageError("pad_to and num_envs both say how many environments each worker plays: give one of them")
        return None, workers, inference.pad_to
    if num_envs is None or workers == "auto":
        return None, num_envs or workers, 1
    if num_envs % int(workers):
        raise UsageError(
            f"num_envs={num_envs} is not a multiple of workers={workers}: each plays as many as the others"
        )
    return None, workers, num_envs // int(workers)


def many_at_once(
    policy: Any, given: Inference | str, num_envs: int | None, nodes: bool, backend: str
) -> tuple[Inference | str, int | None]:
    """How an evaluation asks its policy, and about how many environments, by default.

    A network, of torch or of Stable-Baselines3, is asked about `ROWS` rows at a time, on every machine. Each worker
    asks it about as many environments of its own. The caller asks one that cannot be sent, and in threads, and about a
    number of environments that is given. Other policies are asked as by `collect`.

    nodes: is it played on nodes?
    """
    inference = Inference.of(given)
    if inference.where != "auto" or not _is_network(policy):
        return given, num_envs
    rows = inference.pad_to or ROWS
    plain = num_envs is None and inference == Inference(pad_to=inference.pad_to)
    if plain and backend != "thread" and asked_in_caller(policy) is None:
        return Inference(where="worker", pad_to=rows), None
    count = num_envs or 2 * rows
    size, where = inference.batch_size or min(rows, count), "node" if nodes else "caller"
    wait = WAIT if inference.max_wait is None else inference.max_wait
    return replace(inference, where=where, pad_to=rows, batch_size=size, max_wait=wait), count


def _is_network(policy: Any) -> bool:
    """Does it answer for a batch as for one row after the other? A reset would need the row."""
    if isinstance(policy, str):
        return policy.endswith(ENDING)
    asked = callable(getattr(policy, "predict", None)) or callable(getattr(policy, "parameters", None))
    return asked and not isinstance(policy, type) and not callable(getattr(policy, "reset", None))


def asked_in_caller(policy: Any) -> str | None:
    """Return why "auto" asks a policy in the caller; None: it asks it in the workers.

    The policy's kind alone decides, not its speed and not the number of environments. The source behind a name
    ("file.py:attr") is searched for `batched = True`, and not run.
    """
    if isinstance(policy, str):
        return "it says that it is batched" if _says_batched(policy) else None
    if getattr(policy, "batched", False) is True:
        return "it says that it is batched"
    if isinstance(policy, type):
        return None
    parameters = getattr(policy, "parameters", None)
    if callable(parameters):
        devices = {str(getattr(each, "device", "cpu")) for each in _listed(parameters)} - {"cpu"}
        if devices:
            return f"its parameters are on {', '.join(sorted(devices))}"
    room = _Room(LARGE)
    try:
        pickling.Pickler(room).dump(policy)
    except _Full:
        return f"it is larger than {LARGE >> 20} MiB"
    except Exception as error:  # noqa: BLE001 - pickling runs foreign code, which raises what it likes
        return f"it cannot be sent to workers ({type(error).__name__}: {error})"
    return None


class _Full(Exception):
    """More was written than there is room for."""


class _Room(io.BytesIO):
    """Takes bytes, keeps none, and raises `_Full` after so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise _Full
        return size


def _listed(parameters: Callable[[], Any]) -> list[Any]:
    try:
        return list(parameters())
    except TypeError:  # a method of that name that means something else
        return []


def _says_batched(reference: str) -> bool:
    """Return True if the source of the class or function of that name sets `batched = True`."""
    name, _, attribute = reference.rpartition(":")
    if not name:
        return False
    try:
        path = name if name.endswith(".py") else getattr(importlib.util.find_spec(name), "origin", None)
        tree = ast.parse(Path(path or "").read_text(encoding="utf-8"))
    except (ImportError, OSError, SyntaxError, ValueError):  # who builds it will say what is wrong
        return False
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == attribute:
            return any(_sets_batched(each, "batched") for each in node.body)
        if _sets_batched(node, f"{attribute}.batched"):
            return True
    return False


def _sets_batched(node: ast.stmt, target: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = getattr(node, "value", None)
    return isinstance(value, ast.Constant) and value.value is True and target in map(ast.unparse, targets)
