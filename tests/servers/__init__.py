"""Real servers for the tests, from pip packages, started on first use."""
