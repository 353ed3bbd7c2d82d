"""What runs in the bot's process: the runner, and what it reports to the playground."""
