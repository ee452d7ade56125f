"""The report of a run: read from the run's directory, counted, and drawn as one HTML file."""
