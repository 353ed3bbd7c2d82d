"""A turn while it runs: its record under the claim, its handler, its tools and its questions."""
