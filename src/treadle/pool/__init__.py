"""The engine: workers that run slots, and one book of what they were asked for.

One idea: whoever wants something of workers submits a request under a tag and is told what has become of it.
Restarts, deadlines and deaths are decided in one place; a face says only what a lost request means to it.

In order of reading: `child` (its `serve` is the worker's loop), `worker` (the protocol, and `serial`, the
reference), `messages`, `life` and `failure` (what travels, a worker's life as a table, what to do about a death),
`calls` (the book), `group` and `pool` (all workers; what a caller holds); then how rows lie (`layout`, `place`,
and `treadle.memory`) and how words and wakings travel (`line`, `bell`, `channel`); `serve` (what a worker does with
a request). What starts and ends processes (`process`, `forkserver`, `forking`, `lifeline`,
`stderr`) can wait.
"""
