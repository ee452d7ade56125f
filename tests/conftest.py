"""What holds for every test: it leaves nothing behind, it has a hard limit, and heavy and slow tests are asked for.

`no_residue` photographs this process and its kin before and after each test and fails the test that left something:
a process (running or zombie), a file descriptor, an entry in /dev/shm, a thread, or a changed signal handler. What
stays for the whole session is started before the first photograph: the fork server that workers come from and
multiprocessing's resource tracker. Servers that have imported modules of a test may stay, too, as many as the package
says; they are left out with their descriptors, by number. Imports need no such preparation: those of the libraries
that the tests use were measured to leave no descriptor, thread or handler behind.

A process is the session's if it descends from this one (workers descend through the fork server), or if it carries
the mark that `pytest_configure` puts into the environment: then it is ours even when its parent is gone. Every program
that the session executes has the mark, and so have the workers, since they are forks of the fork server, which is such
a program. Only an orphan that was forked from this very process, without executing anything, would go unseen.

Photographs are taken from /proc, and all its processes are only looked at where the system has started one (or a
thread) since the last look: most tests start nothing. Without /proc only threads and signal handlers are compared.
"""

import contextlib
import faulthandler
import gc
import importlib
import multiprocessing.heap
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_timeout
from _pytest.outcomes import OutcomeException
from hypothesis import settings

TEST_ALL = os.environ.get("TREADLE_TEST_ALL") == "1"
REQUIRE = TEST_ALL or os.environ.get("TREADLE_TEST_REQUIRE") == "1"  # `make test`: what it leaves out is marked heavy
SETTLE_SECONDS = 10.0
RAY_SECONDS = 30.0  # of a test with a cluster
SCALE = "TREADLE_TEST_SCALE"  # environment variable: how many times longer than on a quiet machine limits are
MOST_SCALE = 5.0
TOGETHER = 2.0  # at least so many times where several processes run tests: they take the cores from each other
MARK = "TREADLE_TEST_SESSION"
PROC = Path("/proc")
SHM = Path("/dev/shm")

# An example that steps real processes takes as long as the machine is busy, so hypothesis's own deadline says nothing.
# `make test` draws the same examples every time; pytest by hand draws new ones.
settings.register_profile("treadle", deadline=None, max_examples=60, print_blob=True, derandomize=REQUIRE)
settings.load_profile("treadle")


WHOLE_FILES: set[str] = set()  # that need a library at their top
COLLECTED = False  # are all test files imported?


def require(module: str) -> ModuleType:
    """Import `module` for a test, or skip the test without it. Under `make test` and `make test-all` its absence is a
    failure, so that no test is left out by both of them.

    Works at the top of a test file too, all of whose tests are marked heavy then. Without the library they are skipped;
    under `make test-all` that is a failure.
    """
    if not COLLECTED:
        WHOLE_FILES.add(sys._getframe(1).f_code.co_filename)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = f"{module} cannot be imported: {error}"
    if TEST_ALL or (REQUIRE and COLLECTED):
        pytest.fail(f"{reason}; a test that needs what `make setup` does not install is marked heavy", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(name="require", scope="session")
def require_fixture() -> Callable[[str], ModuleType]:
    """The function `require`, for tests that would rather not import it."""
    return require


@pytest.fixture(scope="session")
def command_server() -> Iterator[None]:
    """Commands are forked from one process meanwhile, which has made their imports."""
    from cli.command import serving

    with serving():
        yield


# --- processes of the session ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it. A pid is used again; a pid with its start time (clock ticks since boot) is not."""

    pid: int
    start: int
    parent: int
    state: str
    name: str

    def __str__(self) -> str:
        kind = "zombie" if self.state == "Z" else f"process in state {self.state}"
        return f"{kind} {self.pid} (child of {self.parent}): {self.command() or self.name}"

    def command(self) -> str:
        """What it was called with; empty of a zombie, or if it is gone."""
        return read_proc(f"{self.pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:200]


def read_proc(name: str, most: int = 1 << 12) -> bytes:
    """The beginning of a file of /proc; empty if it is gone, or not ours to read. Not by way of `open`: a photograph
    of all processes is taken many thousand times."""
    try:
        fd = os.open(f"{PROC}/{name}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, most)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_process(pid: int) -> Process | None:
    """The process `pid`, or None if it is gone."""
    stat = read_proc(f"{pid}/stat")
    # The name in brackets may itself hold brackets and spaces; what follows the last one is regular.
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    if not (fields := rest.split(None, 20)):
        return None
    return Process(pid, int(fields[19]), int(fields[1]), fields[0].decode(), name.decode(errors="replace"))


def all_processes() -> dict[int, Process]:
    """Every process of the machine, by pid."""
    pids = [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]
    return {process.pid: process for process in map(read_process, pids) if process is not None}


def descends(process: Process, table: dict[int, Process], root: int) -> bool:
    """Whether `root` is among the ancestors of `process`."""
    seen = set()
    parent: Process | None = process
    while parent is not None and parent.pid not in seen:
        if parent.parent == root:
            return True
        seen.add(parent.pid)
        parent = table.get(parent.parent)
    return False


_STRANGERS: set[tuple[int, int]] = set()  # processes already seen not to be ours: an environment is read once


def latest_pid() -> str:
    """The number that the latest process or thread of the machine (of this pid namespace) was given."""
    return read_proc("loadavg").split()[-1].decode()


@cache
def latest_pid_is_told() -> bool:
    """Does `latest_pid` know at once of what is started? Some containers have a file of their own there."""
    try:
        before = latest_pid()
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        return latest_pid() != before
    except IndexError:
        return False


_SEEN: tuple[str, dict[tuple[int, int], Process]] | None = None  # what the latest look saw, and `latest_pid` before it


def session_processes(lasting: set[int], *, anew: bool = True) -> dict[tuple[int, int], Process]:
    """The live and zombie processes that this session started, by (pid, start), without the pids in `lasting`.

    Unless `anew`, it is what was seen last where no process was started on this machine since: some may have ended.
    """
    global _SEEN
    if not PROC.is_dir():
        return {}
    latest = latest_pid() if latest_pid_is_told() else None
    if not anew and _SEEN is not None and _SEEN[0] == latest:
        return _SEEN[1]
    table = all_processes()
    me = table[os.getpid()]
    mark = os.environ[MARK].encode()
    found = {}
    for process in table.values():
        key = (process.pid, process.start)
        if process.pid == me.pid or process.pid in lasting:
            continue
        if descends(process, table, me.pid):
            found[key] = process
        elif process.start >= me.start and key not in _STRANGERS:
            block = read_proc(f"{process.pid}/environ", 1 << 20)
            if mark in block:
                found[key] = process
            elif block:  # empty while a program is being executed: look again
                _STRANGERS.add(key)
    _SEEN = (latest, found) if latest is not None else None
    return found


def fork_servers() -> tuple[set[int], set[int]]:
    """The pids of the process-wide fork servers, and our descriptors that belong to them. Starts the base server unless
    it runs; those with users' modules are as many as may wait for further workers, or it is said here.

    Nothing where processes are not compared anyway.
    """
    if not PROC.is_dir():
        return set(), set()
    from treadle.worker import forkserver

    forkserver.server()
    found = forkserver.servers()
    waiting = [each for each in found[1:] if not each.workers]
    assert len(waiting) <= forkserver.KEPT, f"{len(waiting)} fork servers wait for workers"
    return {each.pid for each in found}, {fd for each in found for fd in (each.channel.fileno(), each.pidfd)}


# --- photographs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """What `no_residue` compares, as it was at one moment."""

    processes: dict[tuple[int, int], Process]
    fds: dict[int, str]
    shm: frozenset[str]
    threads: frozenset[threading.Thread]
    handlers: dict[int, Any]

    @classmethod
    def take(cls, *, anew: bool = True) -> "Snapshot":
        """Photograph this process now. Unless `anew`, /proc is not gone through where no process has been started."""
        servers, lines = fork_servers()
        tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
        return cls(
            processes=session_processes({*servers, *(() if tracker is None else (tracker,))}, anew=anew),
            fds={fd: target for fd, target in open_fds().items() if fd not in lines},
            shm=frozenset(os.listdir(SHM)) if SHM.is_dir() else frozenset(),
            threads=frozenset(thread for thread in threading.enumerate() if runs(thread)),
            handlers={number: signal.getsignal(number) for number in signal.valid_signals()},
        )


def runs(thread: threading.Thread) -> bool:
    """Whether it runs. A raw thread that asked `threading` for its name stays listed as a dummy after its end."""
    return not isinstance(thread, threading._DummyThread) or thread.ident in sys._current_frames()


def open_fds() -> dict[int, str]:
    """What each open descriptor of this process points at. The one that lists the folder is closed again by then."""
    found: dict[int, str] = {}
    folder = PROC / "self" / "fd"
    for entry in os.listdir(folder) if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            found[int(entry)] = os.readlink(folder / entry)
    return found


def held_by_strangers(name: str, ours: set[int]) -> bool:
    """Whether a process that is not ours maps or holds /dev/shm/`name`: then somebody else on this machine made it.

    A file is known by its number: glibc makes a semaphore under another name, which is the one that /proc shows.
    """
    try:
        file = os.stat(SHM / name)
    except FileNotFoundError:
        return True  # it is nobody's any more
    mapped = f" {os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x} {file.st_ino} "
    for pid in all_processes().keys() - ours - {os.getpid()}:
        with contextlib.suppress(OSError):
            if mapped in (PROC / str(pid) / "maps").read_text(errors="replace"):
                return True
            if any(os.path.samestat(fd.stat(), file) for fd in (PROC / str(pid) / "fd").iterdir() if fd.exists()):
                return True
    return False


def own_shm() -> set[str]:
    """What lies in /dev/shm, but for what strangers hold: a test run beside this one, say."""
    ours = {process.pid for process in session_processes(set()).values()}
    return {name for name in os.listdir(SHM) if not held_by_strangers(name, ours)}


def residue(before: Snapshot, after: Snapshot) -> list[str]:
    """What `after` has that `before` had not, one line each; empty if nothing was left behind.

    What is gone is no residue: a test may end what a wider fixture or a failed test left running.
    """
    left = [str(process) for key, process in after.processes.items() if key not in before.processes]
    fds = {fd: target for fd, target in after.fds.items() if before.fds.get(fd) != target}
    left += [f"open file descriptor {fd} -> {target}" for fd, target in fds.items()]
    ours = {process.pid for process in after.processes.values()}
    left += [f"/dev/shm/{name}" for name in after.shm - before.shm if not held_by_strangers(name, ours)]
    left += [f"thread {thread.name!r}" for thread in after.threads - before.threads]
    left += [
        f"handler of signal {number}: {before.handlers[number]!r} became {handler!r}"
        for number, handler in after.handlers.items()
        if before.handlers[number] != handler
    ]
    return left


def settle(
    before: Snapshot, seconds: float = SETTLE_SECONDS, *, keep: Callable[[list[str]], list[str]] = list
) -> tuple[list[str], Snapshot]:
    """The residue since `before`, once it is empty or `seconds` have passed, and the last photograph.

    `keep`: what of it counts.

    The kernel reaps and closes a little after the call that asked for it has returned, hence the wait. Garbage is only
    collected when something is left: it takes longer than most tests.
    """
    deadline = time.monotonic() + seconds
    anew = False
    while True:
        after = Snapshot.take(anew=anew)
        anew = True
        left = keep(residue(before, after))
        if not left or time.monotonic() > deadline:
            return left, after
        gc.collect()
        time.sleep(0.01)


def kill_leftovers(before: Snapshot, after: Snapshot) -> None:
    """Kill the processes that a test left, so that they do not slow down or confuse the tests that follow."""
    for key in after.processes.keys() - before.processes.keys():
        current = read_process(key[0])
        if current is not None and current.start == key[1] and current.state != "Z":
            with contextlib.suppress(ProcessLookupError):
                os.kill(current.pid, signal.SIGKILL)


# Ray's own processes: nodes, and workers that wait for something to do. An actor is called otherwise.
RAY_STAYS = (
    "ray::IDLE",
    "Agent",
    "/raylet/raylet",
    "/gcs/gcs_server",
    "/_private/",
    "ray/dashboard",
    "default_worker.py",
)
RAY_NODES = 3


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Three nodes of one CPU on this machine, to which this process is connected. A session that runs tests in several
    processes has one in each: Ray keeps them apart by folders and ports of their own."""
    ray = require("ray")
    from ray.cluster_utils import Cluster

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(RAY_NODES - 1):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def without_ray(left: list[str]) -> list[str]:
    """What of a residue is not Ray's own: its connections and workers come and go as it likes."""
    ours = [line for line in left if not any(each in line for each in RAY_STAYS)]
    return [
        line
        for line in ours
        if not line.startswith(("open file descriptor", "handler of signal", "/dev/shm/plasma"))
        and "thread 'Dummy" not in line
        and "thread 'Thread-" not in line
    ]


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember that a test failed: its traceback keeps local variables alive, which `no_residue` must mention."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session", autouse=True)
def lasting_helpers() -> None:
    """Start what lives as long as the session, before the first photograph."""
    from treadle.worker import forkserver

    resource_tracker.ensure_running()
    # Gymnasium's vectors use multiprocessing's shared heap, which keeps its first block and that block's descriptor.
    multiprocessing.heap.BufferWrapper(1)
    fork_servers()
    forkserver.STATUS_SECONDS = 20.0  # tests name exit codes, which a server on a busy machine may know later


@pytest.fixture
def every_interrupt_is_heard() -> Iterator[None]:
    """A signal that comes during a collection is answered in a callback written in Python (Hypothesis times the
    collector in one, a WeakSet forgets in another), and what its handler raises is only reported; with a large heap
    that is not rare. So nothing is collected meanwhile."""
    callbacks = list(gc.callbacks)
    gc.collect()
    gc.callbacks.clear()
    gc.disable()
    yield
    gc.enable()
    gc.callbacks[:] = callbacks


@pytest.fixture(autouse=True)
def no_residue(request: pytest.FixtureRequest, lasting_helpers: None) -> Iterator[None]:
    """Fail the test that leaves a process, descriptor, shared memory, thread or signal handler behind."""
    with_ray = request.node.get_closest_marker("ray") is not None
    if with_ray:
        request.getfixturevalue("ray_cluster")
    before = Snapshot.take(anew=with_ray)
    yield
    # Ray kills the processes of actors that are over in its own time: on a busy machine that can be more than ours
    seconds, keep = (RAY_SECONDS, without_ray) if with_ray else (SETTLE_SECONDS, list)
    left, after = settle(before, scaled(seconds), keep=keep)
    if left:
        kill_leftovers(before, after)
        note = ""
        if request.node.stash.get(FAILED, False):
            note = "\n(the test failed before: its traceback may be what keeps these alive)"
        pytest.fail("left behind: " + "\n             ".join(left) + note, pytrace=False)


# --- the limits ------------------------------------------------------------------------------------------------------

BACKSTOP_SECONDS = 30.0


def calibrate(seconds: float = 0.2) -> float:
    """How many seconds this thread waits for a second of a processor, between 1 and MOST_SCALE: on a machine where ten
    others are at work, six on two cores. `seconds`: of processor time that the measurement takes."""
    cpu, wall = time.thread_time(), time.perf_counter()
    while time.thread_time() - cpu < seconds:
        sum(range(1000))
    return min(MOST_SCALE, max(1.0, (time.perf_counter() - wall) / (time.thread_time() - cpu)))


def scaled(seconds: float) -> float:
    """A time limit of a test, as long as this machine needs for what a quiet one does in so many seconds. It was
    measured once, when the session began."""
    return seconds * float(os.environ[SCALE])


ITS_OWN_ALARM = pytest.mark.timeout(method="thread")  # for a test that sets the alarm clock, which is one a process
STDERR = pytest.StashKey[int]()
OUTER_MARK = pytest.StashKey[str]()
STATE = pytest.StashKey[tuple[str | None, str]]()


class OverTime(OutcomeException):
    """A test's time is over: raised in the main thread wherever it is.

    Not an `Exception` and not pytest's own `Failed`: what is tested lets it pass, and hypothesis does not take it for a
    failing example, which it would run again and again to make it smaller.
    """


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """End the test that is over time, and no other. (Of pytest-timeout's own two ways one ends the whole run.)

    Only tests that are marked `ITS_OWN_ALARM` have a thread for it: with one around, a pool refuses to fork.
    """
    by_thread, limit = settings.method == "thread", scaled(settings.timeout)
    number = signal.SIGUSR2 if by_thread else signal.SIGALRM

    def strike(*_: Any) -> None:
        if not pytest_timeout.is_debugging():
            faulthandler.dump_traceback(file=item.config.stash[STDERR], all_threads=True)
            raise OverTime(f"{item.nodeid} took longer than its limit of {limit:g} seconds")

    signal.signal(number, strike)  # and there it stays: after a failure the limit is lifted before the last photograph
    if by_thread:
        timer = threading.Timer(limit, signal.pthread_kill, (threading.get_ident(), number))
        timer.start()
    else:
        signal.setitimer(signal.ITIMER_REAL, limit)

    def cancel() -> None:
        if by_thread:
            timer.cancel()
            timer.join()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # where pytest-timeout looks for it
    return True


def time_limit(item: pytest.Item) -> float:
    """The seconds that pytest-timeout gives `item`; 0 means no limit."""
    marker = item.get_closest_marker("timeout")
    limit = None
    if marker is not None:
        limit = marker.args[0] if marker.args else marker.kwargs.get("timeout")
    if limit is None:
        limit = item.config.getoption("timeout", None)
    if limit is None:
        limit = item.config.getini("timeout")
    return float(limit or 0)


def arm(item: pytest.Item) -> None:
    """Dump all stacks and end the run some time after the limit should have ended the test.

    A handler of Python's runs between two instructions, so never while C code does not return; faulthandler needs no
    GIL. Its dump names the test: nothing else can be said from there.
    """
    if limit := time_limit(item):
        faulthandler.dump_traceback_later(scaled(limit) + BACKSTOP_SECONDS, exit=True, file=item.config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Put each test, its fixtures included, under the hard limit."""
    arm(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Arm again: pytest itself disarms faulthandler when a test has raised."""
    arm(item)


def pytest_collection_finish() -> None:
    """Collections of garbage need not go through what was imported for good. Each file of tests puts its folders into
    the path again, and every fork server looks through the path for each of its imports."""
    global COLLECTED
    COLLECTED = True
    sys.path[:] = dict.fromkeys(sys.path)
    gc.collect()
    gc.freeze()


# --- the session -----------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Mark what this session starts, and keep the real stderr for the hard limit (capturing replaces fd 2 later)."""
    start = read_process(os.getpid()) if PROC.is_dir() else None
    # A session inside a test of this one adds to the mark, so that both recognize what it starts.
    config.stash[OUTER_MARK] = os.environ.get(MARK, "")
    os.environ[MARK] = f"{config.stash[OUTER_MARK]}/{os.getpid()}.{start.start if start else 0}/"
    # no key and no signature of whoever runs the tests
    config.stash[STATE] = os.environ.get("XDG_STATE_HOME"), tempfile.mkdtemp(prefix="treadle-tests-state-")
    os.environ["XDG_STATE_HOME"] = config.stash[STATE][1]
    config.stash[STDERR] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    if SCALE not in os.environ:  # the workers of a session in several processes have the one that it measured
        least = TOGETHER if getattr(config.option, "numprocesses", None) else 1.0
        os.environ[SCALE] = f"{max(least, calibrate()):.2f}"


def pytest_report_header() -> str:
    """How long limits are."""
    return f"time limits: {float(os.environ[SCALE]):.1f} times those of a quiet machine ({SCALE})"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Give back what `pytest_configure` took."""
    os.close(config.stash[STDERR])
    os.environ[MARK] = config.stash[OUTER_MARK]
    before, state = config.stash[STATE]
    shutil.rmtree(state, ignore_errors=True)
    os.environ.pop("XDG_STATE_HOME")
    if before is not None:
        os.environ["XDG_STATE_HOME"] = before


# of `scripts/slow_tests.py`: seconds and test; a copy of this file in another folder has none
_TABLE = Path(__file__).with_name("slow.txt")
_ROWS = _TABLE.read_text(encoding="utf-8").splitlines() if _TABLE.is_file() else []
SLOW = {row.split(" ", 1)[1] for row in _ROWS if not row.startswith("#")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave heavy and slow tests out unless TREADLE_TEST_ALL=1 or `-m` speaks of them (slow: or they are named)."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker("slow")
        if str(item.path) in WHOLE_FILES and item.get_closest_marker("heavy") is None:
            raise pytest.UsageError(
                f"{item.nodeid} is in a file that needs a library: mark the file heavy (pytestmark)"
            )
    asked = config.getoption("markexpr")
    out = [mark for mark in ("heavy", "slow") if not TEST_ALL and mark not in asked]
    if any("::" in argument for argument in config.args):
        out = [mark for mark in out if mark != "slow"]
    left = [item for item in items if any(item.get_closest_marker(mark) for mark in out)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: item.get_closest_marker("ray") is not None)  # their cluster lasts until the end
