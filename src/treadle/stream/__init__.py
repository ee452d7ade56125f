"""Streams: workers that are asked for more until there is enough."""
