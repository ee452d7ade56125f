"""How good a policy is: episodes are played, scored, and, in a directory, kept."""
