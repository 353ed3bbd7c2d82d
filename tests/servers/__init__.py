"""Real servers for the tests, each started once, on free ports, and gone with the test run."""
