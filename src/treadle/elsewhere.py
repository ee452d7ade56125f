"""Names of the older systems that are not here, and what is: told to who imports one of them from `treadle`."""

from __future__ import annotations

_PLAN_ENV = "GymPlanEnv takes any Gymnasium id, and ParallelEnv takes plangym's own classes as they are"
_LOOP = "a training loop is yours: see examples/reinforce_cartpole.py and docs/compat-garage.md"

INSTEAD = {
    **dict.fromkeys(
        ("PlangymEnv", "AtariEnv", "ClassicControl", "MujocoEnv", "Box2DEnv", "DMControlEnv", "RetroEnv"), _PLAN_ENV
    ),
    "RayEnv": "ParallelEnv(..., nodes=N) steps batches on the nodes of a cluster",
    **dict.fromkeys(("Trainer", "TFTrainer", "LocalRunner", "wrap_experiment"), _LOOP),
    **dict.fromkeys(("Environment", "Wrapper"), "gymnasium.Env and gymnasium.Wrapper; GymEnv has garage's interface"),
    "normalize": "gymnasium.wrappers has NormalizeObservation, NormalizeReward and RescaleAction",
    **dict.fromkeys(("log_performance", "discount_cumsum"), "a line of NumPy or two: see docs/compat-garage.md"),
    "obtain_evaluation_episodes": "a sampler's evaluate, or treadle.evaluate",
}


def not_here(module: str, name: str) -> AttributeError | ImportError:
    """The error for a name that a module of ours does not have.

    For the older systems' names it is an ImportError, since `from ... import` drops what an AttributeError says.
    """
    if name in INSTEAD:
        return ImportError(f"{module} has no {name}: {INSTEAD[name]}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}")
