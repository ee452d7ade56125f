"""The report of a run, a file to hand on: read from a run's directory, counted, drawn."""
