"""Garage's samplers on a pool of workers: rollouts by workers that users may write, gathered until there is enough.

To read in this order: `worker` and `default_worker` (what plays), `sampler_slot` (what hosts one, where it works),
`gathering` (orders out, trajectories in) with `stop_rules` (when it is enough), `pool_sampler` (what users call).
"""
