"""Lockstep: all slots at once, or those that are ready, over a pool whose programs are environments.

In order of reading: `lockstep` (the schedule, and its fast lane), `batch` (what is handed out, of all slots or some),
`recover` (one request to several workers, and what a worker's death means for its rows) and `slots` (a slot's life as a
table), `history` (what a failure is replayed from).
"""
