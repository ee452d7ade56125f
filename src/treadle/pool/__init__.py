"""The caller's book: what many workers are asked for, and what becomes of it.

One idea: whoever wants something of workers submits a request under a tag and is told what has become of it.
Restarts, deadlines and deaths are decided in one place; a face says only what a lost request means to it.

In order of reading: `failure` (what to do about a death), `calls` (the book), `group` and `pool` (all workers; what a
caller holds), `layout` (what lies where in their memory), `wear` (workers that are worn out). What a worker is,
`treadle.worker` says; what travels to it, `treadle.wire`; where numbers lie, `treadle.memory`.
"""
