"""Wake-ups: between the tasks of this process, and between processes over a server."""
