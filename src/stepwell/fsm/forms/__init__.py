"""Forms, keyboards and menus: flows made from models, and buttons."""
