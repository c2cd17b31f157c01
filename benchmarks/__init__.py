"""Side-by-side measurements of kvstore, Mooncake Store and the machine's own limits. `python -m benchmarks --help`."""
