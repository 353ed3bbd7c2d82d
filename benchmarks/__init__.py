"""Scripts that print figures taken side by side in one run. ``python -m benchmarks`` runs them all."""
