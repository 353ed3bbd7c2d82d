"""Tests of node flows."""
