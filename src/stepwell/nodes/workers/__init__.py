"""Workers: they run submitted runs, and submit the runs of schedules."""
