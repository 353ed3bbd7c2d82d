"""Schedules, which submit runs at their ticks."""
