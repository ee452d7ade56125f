"""A whole pool on every node: Ray launches, places and tells of dead nodes; Treadle steps.

    ray_cluster   the one file that imports Ray: connecting, starting an actor on a node, calling it, ending it
    placing       which actor goes to which node (pure)
    software      what must be the same on all nodes, and what is not (pure)
    travel        what travels: a message and all its arrays as one contiguous buffer
    host          what runs in an actor: the pool's own dispatcher over its slots, and a word to stop it
    worker        the backend "ray": a worker of a pool whose slots are in an actor

An actor is a worker by the pool's protocol (`treadle.pool.worker`), so requests under way, deaths, restarts and
deadlines are where they are for every other backend. What is in its slot is a program as ever; for collecting and
planning it is one that owns a whole pool of its own on its node, and is asked with orders of many items at a time: a
call to an actor costs about half a millisecond, so nothing that is done step by step goes by one.
"""
