"""Failures and episodes played once more, in this process, where a debugger can look at them."""
