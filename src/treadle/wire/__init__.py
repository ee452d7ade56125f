"""The messages between a caller and its workers, and their ways.

Numbered requests and answers (`messages`) travel as words in shared memory (`line`). A bell wakes the other side
(`bell`), and pickles and descriptors go by a channel (`channel`). Infos go as rows of numbers (`info_rows`), values for
all workers as one file (`broadcast`). This room does not know who answers.
"""
