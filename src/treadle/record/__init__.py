"""Episodes on disk. The stored bytes of an episode are a function of the episode alone, and on disk when it has ended.
So a killed run loses only episodes in play, and any number of workers writes the same dataset.

In order of reading: `dataset` (`collect_dataset`, the entry) and `run_directory` (the owner and the contents of a
directory). Then `journal` and `parts` (finished episodes), `columns` (an episode as arrays), and `merge` (one file of
many parts) with `hdf5` and `minari`. Last `summary` and `verify`.
"""
