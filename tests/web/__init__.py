"""What the tests of the playground and the inspector share."""
