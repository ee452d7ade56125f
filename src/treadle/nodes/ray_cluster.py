"""All use of Ray: connecting, starting an actor on a node, calling the actor, ending it."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from treadle.errors import MissingExtra, UsageError
from treadle.nodes.placing import Machine

IDS = ("class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:")  # lines of Ray's messages that say no more
CONNECT_SECONDS = 10  # for an address to answer
TOKEN = " (if the cluster asks for a token: RAY_AUTH_MODE=token, with the token in ~/.ray/auth_token or RAY_AUTH_TOKEN)"
ASIDE = "aside"  # the concurrency group of what an actor is asked while it works


class RayCluster:
    """A connection to Ray, shared by all pools of this process.

    A connection of the program's own (`ray.init`) is used, and stays. Without one the first pool connects and the last
    pool disconnects, which ends a cluster that Treadle has started.

    Args:
        address: see `Cluster`. While Treadle is connected already, that connection is used.

    Raises:
        UsageError: Ray does not answer, or the program is connected to a cluster with another address.
        MissingExtra: Ray is not installed.
    """

    _lock = threading.Lock()
    _users = 0  # of a connection that is ours
    _connection: _Connection | None = None

    def __init__(self, address: str | None) -> None:
        ray = self._ray = _ray()
        with RayCluster._lock:
            if ray.is_initialized() and address is not None:
                _check_same(address, ray.get_runtime_context().gcs_address)
            self._ours = RayCluster._users > 0 or not ray.is_initialized()
            if self._ours:
                if RayCluster._users == 0:
                    RayCluster._connection = _Connection(ray, address or os.environ.get("RAY_ADDRESS") or None)
                RayCluster._users += 1

    def close(self) -> None:
        """Disconnect, if Treadle has connected and no other pool uses the connection. Idempotent."""
        with RayCluster._lock:
            if self._ours:
                self._ours = False
                RayCluster._users -= 1
                if RayCluster._users == 0 and RayCluster._connection is not None:
                    RayCluster._connection.close()
                    RayCluster._connection = None

    @property
    def exclusive(self) -> bool:
        """True if Treadle has started the cluster on this machine for a single pool, which then has all CPUs."""
        connection = RayCluster._connection if self._ours else None
        return connection is not None and connection.address is None and RayCluster._users == 1

    def machines(self) -> list[Machine]:
        """Return the nodes that are alive."""
        return [
            Machine(
                each["NodeID"],
                each["NodeManagerAddress"],
                each["Resources"].get("CPU", 0.0),
                each["Resources"].get("GPU", 0.0),
            )
            for each in self._ray.nodes()
            if each["Alive"]
        ]

    def start(self, kind: type, aside: tuple[str, ...], machine: Machine, cpus: int, gpus: float, *args: Any) -> Any:
        """Start an actor of class `kind(*args)` on a node, and return it without waiting.

        Ray neither restarts the actor nor repeats its calls: `treadle.pool.calls` decides about that.

        Args:
            aside: methods that can be called while another one works.
            machine: the node.
            cpus, gpus: that Ray reserves for the actor.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray = self._ray
        marked = {name: ray.method(concurrency_group=ASIDE)(_unbound(getattr(kind, name))) for name in aside}
        actor = ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={ASIDE: 1},
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
        )(type(kind.__name__, (kind,), marked))
        return actor.remote(*args)

    def call(
        self, actor: Any, method: str, *args: Any, then: Callable[[Any, BaseException | None], None], values: int = 1
    ) -> None:
        """Call a method of an actor. Ray replaces arguments that are references by their values.

        Args:
            then: called by a thread of Ray's with (result, None) or (None, exception).
            values: number of values that the method returns. With several, `then` is called once the last one has
                arrived. The result is then (references to the others, last value).
        """
        asked = getattr(actor, method)
        *before, last = asked.options(num_returns=values).remote(*args) if values > 1 else [asked.remote(*args)]

        def ended(future: Any) -> None:
            error = future.exception()
            then(None if error is not None else (before, future.result()) if values > 1 else future.result(), error)

        last.future().add_done_callback(ended)

    def get(self, references: list[Any]) -> list[Any]:
        """Return the values of references."""
        return self._ray.get(references) if references else []  # type: ignore[no-any-return]

    def put(self, value: Any) -> Any:
        """Return a reference to a value, which each node pulls once for all of its actors.

        Raises UsageError if Ray's object store is full.
        """
        raised = self._ray.exceptions
        try:
            return self._ray.put(value)
        except (raised.ObjectStoreFullError, raised.OutOfDiskError) as error:  # what does not fit goes to a disk first
            raise UsageError(
                f"Ray's object store is full, and {value.nbytes:,} bytes are to be sent to the nodes. Give it more "
                "memory (object_store_memory of ray.init, --object-store-memory of ray start)"
            ) from error

    def kill(self, actor: Any) -> None:
        """End an actor's process at once."""
        self._ray.kill(actor, no_restart=True)

    def why(self, error: BaseException) -> str:
        """Return, in one line, the cause of an actor's death or of a failed call."""
        raised = self._ray.exceptions
        if isinstance(error, raised.ActorUnavailableError):
            return "it cannot be reached any more"
        if isinstance(error, raised.ObjectStoreFullError | raised.OutOfDiskError):
            return "its object store is full: give it more memory (--object-store-memory of ray start)"
        lines = [line.strip() for line in str(getattr(error, "cause", None) or error).strip().splitlines()]
        said = [line for line in lines if line and not line.startswith(IDS)]
        errors = [line for line in said if line.partition(":")[0].endswith(("Error", "Exception"))]
        return (errors or said or [type(error).__name__])[-1]

    def never_began(self, error: BaseException) -> bool:
        """Return True if an actor ended before it ran, because its node was lost or had no room.

        False for an exception in the constructor, and for the death of the process alone.
        """
        alone = ("creation task", "worker process has died")
        is_actors = isinstance(error, self._ray.exceptions.RayActorError)
        return is_actors and not any(each in str(error) for each in alone)


def _unbound(method: Any) -> Any:
    """Return a copy of a function for Ray to mark, so that the class itself stays as it is."""

    def same(self: Any, *args: Any) -> Any:
        return method(self, *args)

    return same


class _Connection:
    """A connection to Ray, made by a thread that lasts as long.

    The kernel ends a cluster that Treadle started together with the thread that started it. Ctrl-C does not interrupt
    connecting. Raises UsageError if Ray does not answer.

    Attributes:
        address: of the cluster; None: it was started on this machine.
    """

    def __init__(self, ray: Any, address: str | None) -> None:
        self._ray, self.address = ray, address
        self._told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="treadle-ray", daemon=True)
        self._thread.start()
        error = self._told.get()
        if error is not None:
            text = " ".join(str(error).split())
            place = f"at {address}" if address else "on this machine"
            # Ray does not try its token on an address that it is given, and says no more of it in the error
            hint = TOKEN if type(error) is ConnectionError and "RAY_AUTH_MODE" not in os.environ else ""
            raise UsageError(f"Ray does not answer {place}: {type(error).__name__}: {text}{hint}") from error

    def _run(self) -> None:
        try:
            _check_answers(self.address)
            if self.address is None:
                self._ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR)
            else:
                self._ray.init(address=self.address, logging_level=logging.ERROR)
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            self._told.put(error)
            return
        self._told.put(None)
        self._over.get()
        self._ray.shutdown()
        self._told.put(None)

    def close(self) -> None:
        self._over.put(None)
        self._told.get()
        self._thread.join(1.0)


def _check_answers(address: str | None) -> None:
    """Raise OSError for an address that does not answer: Ray would try for minutes, and then end the process."""
    host, _, port = (address or "").rpartition(":")
    if host.startswith("ray"):
        raise OSError(f"{address} is a proxy of Ray Client's: run the program on a node, with the address of its head")
    if host and port.isdecimal():
        with socket.create_connection((host, int(port)), CONNECT_SECONDS) as there:
            if not os.environ.get("RAY_USE_TLS") and not there.recv(1):  # gRPC's servers speak first
                raise OSError("what is there is not Ray")


def _check_same(address: str, here: str) -> None:
    """Raise UsageError for the address of another cluster than the one that the program is connected to."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        if address in ("auto", here) or f"{socket.gethostbyname(host)}:{port}" == here:
            return
    raise UsageError(
        f"this program is connected to Ray at {here}, and address is {address!r}: leave it out, or disconnect first "
        "(ray.shutdown())"
    )


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("nodes are reached by Ray: pip install 'treadle[ray]'") from error
    return ray
