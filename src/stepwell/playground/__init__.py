"""Try a bot without Telegram: a local Bot API, and a page that shows the bot at work.

``stepwell play bot.py`` starts both; ``playground.play.Playground`` is the same for programs.
"""
