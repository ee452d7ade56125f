"""The programs of slots: `base` (the interface), `gym_env` (an environment behind it), `policies` (all kinds of
policies behind one interface), `ids` (environments by name) and `saved` (models from files)."""
