"""A simulated world for Stepwell itself: processes, a server, a network, Telegram, people, and faults from a seed."""
