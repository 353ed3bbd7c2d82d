"""Commands that read and change runs of node flows, and their schedules."""
