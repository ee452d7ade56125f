"""A whole pool on every node: Ray launches and places actors and reports dead nodes; Treadle steps.

```text
ray_cluster   the one file that imports Ray: connecting, starting an actor on a node, calling it, ending it
placing       which actor goes to which node (pure)
travel        messages: each with all its arrays as one contiguous buffer
host          the contents of an actor: a pool, the relay of requests to its workers, the check of its software
worker        the backend "ray": a worker that stands for one of an actor's pool
```

To the caller's pool each worker on a node is a worker by the common protocol (`treadle.worker.worker`). So requests,
deaths and deadlines are treated as for every other backend. The worker's slot has a program. For collecting, that
program owns a whole pool, and an actor has only one. All programs get orders of many items at a time. A call to an
actor costs about half a millisecond, too much for single steps.
"""


def backend() -> str:
    """Return the name of the backend of workers on nodes. Faces give the name to a pool, and import nothing else."""
    from treadle.nodes.worker import BACKEND  # which makes itself known when it is imported

    return BACKEND
