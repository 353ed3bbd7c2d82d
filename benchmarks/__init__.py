"""Figures, ours and the peers', taken side by side in one run. Start with ``python -m benchmarks NAME``."""
