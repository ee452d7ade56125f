"""The complete state of an environment: captured, carried, put back. `Keeper` is the door; see `keeper.py`."""
