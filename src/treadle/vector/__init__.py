"""Vectors of environments: faces on the pool's lockstep schedule."""
