"""Episodes on disk. One idea: what is stored of an episode is a function of the episode alone, and is on disk when
it has ended; so a killed run loses what was being played, and any number of workers writes the same dataset.

In order of reading: `dataset` (`collect_dataset`, the door), `run_directory` (whose directory it is, and what is in
it), `journal` and `parts` (episodes as they are finished), `columns` (an episode as arrays), `merge` (one file of many
parts) with `hdf5` and `minari`; for what comes after `summary` and `verify`.
"""
