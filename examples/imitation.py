# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Imitation: collect, look, learn, evaluate, watch a failure
#
# A policy that knows the task shows it, a network learns from the episodes, and the episodes of both are compared.
# This file is a script and a notebook: `make notebook` writes `build/imitation.ipynb`.
# It takes less than a minute on one core. It needs `torch` and `treadle[cli,data]`.

# %%
import tempfile
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import treadle

torch.set_num_threads(1)
OUT = Path(tempfile.mkdtemp(prefix="imitation-"))

# %% [markdown]
# ## The task
#
# Move a point to a goal within 25 steps. A wall with a gap at its top stands between them. The environment draws
# pictures, so that films can be made. In two episodes of a hundred a hidden fault raises.

# %%
SIDE, STEP = 96, 0.08
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32) * STEP


class Reach(gym.Env):
    """Observation float32[4]: where the point is and where the goal is, x and y of each in [0, 1]."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 8}
    observation_space = gym.spaces.Box(0, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.uniform([0.05, 0.05], [0.35, 0.95]).astype(np.float32)
        self.goal = self.np_random.uniform([0.65, 0.05], [0.95, 0.95]).astype(np.float32)
        self.steps, self.faulty = 0, self.np_random.random() < 0.02
        return self.look(), {}

    def look(self):
        return np.concatenate([self.at, self.goal])

    def step(self, action):
        self.steps += 1
        if self.faulty and self.steps == 4:
            raise ValueError(f"no contact at {self.at[0]:.2f}, {self.at[1]:.2f}")
        there = np.clip(self.at + MOVES[action], 0, 1)
        crosses = (self.at[0] < 0.5) != (there[0] < 0.5)
        if not (crosses and there[1] < 0.6):  # the wall stands at x = 0.5 and leaves a gap at the top
            self.at = there
        done = bool(np.abs(self.at - self.goal).max() < STEP)
        return self.look(), -0.01 + done, done, self.steps == 25, {"is_success": done}

    def render(self):
        picture = np.full((SIDE, SIDE, 3), 245, np.uint8)
        picture[int(0.4 * SIDE) :, SIDE // 2 - 1 : SIDE // 2 + 1] = 90
        for (x, y), colour in ((self.goal, (80, 160, 90)), (self.at, (50, 90, 170))):
            row, column = int((1 - y) * (SIDE - 1)), int(x * (SIDE - 1))
            picture[max(0, row - 3) : row + 4, max(0, column - 3) : column + 4] = colour
        return picture


# %% [markdown]
# ## Collect
#
# The demonstrator takes a batch of observations and returns an action for each row. Below the gap it goes up first,
# then sideways, then up or down to the goal. `on_error="skip"` leaves out the episodes in which the environment raises,
# and keeps what is needed to play them again. Episode *i* depends on the seed and *i* alone, so any number of workers
# makes the same dataset.


# %%
def demonstrator(observations):
    at, gap = observations[:, :2], observations[:, 2:] - observations[:, :2]
    up = (at[:, 0] < 0.5) & (at[:, 1] < 0.64)
    sideways = np.where(gap[:, 0] > 0, 0, 1)
    upright = np.where(gap[:, 1] > 0, 2, 3)
    return np.where(up, 2, np.where(np.abs(gap[:, 0]) >= STEP, sideways, upright)).astype(np.int64)


stored = treadle.collect_dataset(
    Reach, demonstrator, episodes=200, seed=0, out=OUT / "shown", on_error="skip", max_skipped=0.1
)
print(f"{stored.finished} episodes in {stored.directory}")

# %% [markdown]
# ## Look
#
# The report is one HTML file. It shows the rate of success with its interval, each episode as a cell, and failures by
# cause and line.

# %%
print(treadle.report(OUT / "shown"))
dataset = treadle.load(OUT / "shown")
pairs = [(episode.observations[:-1], episode.actions) for episode in dataset]
observations = torch.from_numpy(np.concatenate([saw for saw, _ in pairs]))
actions = torch.from_numpy(np.concatenate([did for _, did in pairs]))
print(tuple(observations.shape), tuple(actions.shape), "actions of each kind:", torch.bincount(actions).tolist())

# %% [markdown]
# ## Learn
#
# Behaviour cloning: the network learns to take the demonstrator's action.

# %%
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for epoch in range(30):
    for rows in torch.randperm(len(actions)).split(256):
        loss = nn.functional.cross_entropy(net(observations[rows]), actions[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")


# %% [markdown]
# ## Evaluate
#
# Both policies play the same 100 episodes, from seeds that the dataset does not have. The last line pairs them.


# %%
class Cloned:
    batched = True  # it is asked in this process, about all environments that are ready

    def __call__(self, observations):
        with torch.inference_mode():
            return net(torch.from_numpy(observations)).argmax(1).numpy()


options = {"episodes": 100, "seed": 1, "on_error": "skip", "max_skipped": 0.1}
learned = treadle.evaluate(Reach, Cloned(), out=OUT / "learned", **options)
shown = treadle.evaluate(Reach, demonstrator, out=OUT / "compared", **options)
print(learned, shown, treadle.compare(learned, shown), sep="\n")

# %% [markdown]
# ## Watch a failure
#
# The episode with the smallest return is played again, here and from its recorded actions, and filmed.

# %%
worst = min(learned.scores, key=lambda score: score.total_reward)
film = OUT / "worst.png"
print(treadle.replay(OUT / "learned", worst.index, env=Reach, render=film))
if "get_ipython" in globals():
    from IPython.display import Image, display

    display(Image(film))

# %% [markdown]
# The environment has raised, too. `replay` plays such an episode up to the line that raised, and the result has the
# error. `pdb=True` stops there in a debugger.

# %%
failure = sorted((OUT / "shown" / "failures").glob("*.repro"))[0]
print(treadle.replay(failure, env=Reach))
