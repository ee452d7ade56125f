"""Where numbers lie: shared memory (`arena`), who holds what of it (`lent`), the batches and rollouts that steps are
written to (`ring`), and how a worker writes them (`rows`). No process, no request and no message is known here.
"""
