"""Lockstep: all slots at once, or those that are ready, over a pool whose programs are environments.

In order of reading: `lockstep` (the schedule, and its fast lane), `batch` (the batches of all slots or some), `recover`
and `slots`, `history` (the record that a failure is replayed from). `recover` has requests to several workers, and what
a worker's death means for their rows; `slots` has a slot's life as a table.
"""
