"""Workers, on both sides.

In the caller: the protocol, and `serial`, the reference (`worker`); a worker's life as a table (`life`), the options
(`options`), the kinds of workers (`backends`). In the worker: the receive loop (`loop`), and the server of requests
(`serve`). The files that start and end threads and processes can be read last: `thread`, `process`, `child`,
`forkserver`, `forking`, `lifeline`, `stderr`. The pool has the requests to many workers, and what follows a death.
"""
