"""A whole pool on every node: Ray launches, places and tells of dead nodes; Treadle steps.

    ray_cluster   the one file that imports Ray: connecting, starting an actor on a node, calling it, ending it
    placing       which actor goes to which node (pure)
    travel        what travels: a message and all its arrays as one contiguous buffer
    host          what runs in an actor: a pool, and what passes requests on to its workers; which software it must have
    worker        the backend "ray": a worker that stands for one of an actor's pool

To the caller's pool each is a worker by its protocol (`treadle.worker.worker`), so requests under way, deaths and
deadlines are where they are for every other backend. What is in its slot is a program as ever; for collecting it is one
that owns a whole pool itself, and an actor has only one. All are asked with orders of many items at a time: a call to
an actor costs about half a millisecond, so nothing that is done step by step goes by one.
"""


def backend() -> str:
    """The name of the backend of workers on nodes, for a pool: faces name it, and none of what is behind it."""
    from treadle.nodes.worker import BACKEND  # which makes itself known when it is imported

    return BACKEND
