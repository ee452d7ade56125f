"""The memory in which numbers lie.

`arena` is the shared memory, and `lent` keeps account of the arrays over it that are held. Steps are written to the
batches and rollouts of `ring`, and workers write them by `rows`. This room knows no process, no request and no message.
"""
