"""How fast Treadle steps envs, as a share of what the machine can do at all: `python -m benchmarks.real --help`."""
