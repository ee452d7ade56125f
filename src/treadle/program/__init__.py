"""What runs in a slot: `base` (the interface), `gym_env` (an environment stepped by it), `policies` (whoever acts,
asked in one way), and what is read from outside: `ids` (environments by name), `saved` (models)."""
