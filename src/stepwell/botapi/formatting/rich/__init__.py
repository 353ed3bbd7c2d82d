"""Rich messages: blocks, from JSON, HTML and Markdown, and their limits."""
