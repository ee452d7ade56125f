"""The memory in which numbers lie.

`arena` is the shared memory, and `lent` counts who holds what of it. Steps are written to the batches and rollouts of
`ring`, and workers write them by `rows`. This room knows no process, no request and no message.
"""
