"""What travels between a caller and its workers: numbered requests and answers (`messages`), as words in shared memory
(`line`), with a bell that wakes the other side (`bell`) and a road for pickles and descriptors (`channel`).
Infos go as rows of numbers (`info_rows`), what goes to all as one file (`broadcast`). Who answers is not known here.
"""
