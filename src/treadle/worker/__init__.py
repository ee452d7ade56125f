"""What a worker is, on both sides.

In the caller: the protocol, and `serial`, the reference (`worker`); its life as a table (`life`), how it is to be run
(`options`), which kinds there are (`backends`). There: the receive loop (`loop`), and what it does with a request
(`serve`). What starts and ends threads and processes (`thread`, `process`, `child`, `forkserver`, `forking`,
`lifeline`, `stderr`) can wait. What many workers are asked for, and what follows a death, is the pool's.
"""
