"""The caller's book: requests to many workers, and what becomes of them.

One idea: a schedule submits a request under a tag, and hears what has become of the tag. Restarts, deadlines and deaths
are decided in one place; a face decides only what a lost request means to it.

In order of reading: `failure` (what to do about a death), `calls` (the book), `group` and `pool` (all workers; what a
caller holds). Then `layout` (what lies where in their memory) and `processor` (processor time, and workers that are
worn out). `treadle.worker` defines workers, `treadle.wire` what travels to them, `treadle.memory` where numbers lie.
"""
