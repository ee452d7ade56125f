"""Environments that go wrong (`faults`), and what strikes workers while a face goes on (`chaos`)."""
