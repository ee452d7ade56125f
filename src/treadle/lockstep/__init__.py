"""Lockstep: all slots at once, or those that are ready, over a pool whose programs are environments.

In order of reading: `lockstep`, `batch`, `recover`, `slots`, `history`. `lockstep` is the schedule with its fast lane,
and `batch` makes the batches of all slots or some. `recover` has requests to several workers, and what a worker's death
means for their rows. `slots` has a slot's life as a table, and `history` the record that a failure is replayed from.
"""
