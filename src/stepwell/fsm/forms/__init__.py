"""Flows made from models."""
