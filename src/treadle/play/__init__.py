"""Playing in a slot: whole episodes, by an actor of its own or with actions from the caller."""
