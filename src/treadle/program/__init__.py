"""The programs of slots.

`base` has the interface, `gym_env` an environment behind it, `policies` all kinds of policies behind one interface.
`ids` finds environments by name, `saved` loads models from files.
"""
