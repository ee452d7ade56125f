"""What came of a run, as a file to hand on: read from a run's directory, counted, drawn."""
