"""Streams: workers are asked for more until there is enough."""
