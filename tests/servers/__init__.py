"""Real servers for the tests, from pip packages: a module per kind, started when a test first needs one."""
