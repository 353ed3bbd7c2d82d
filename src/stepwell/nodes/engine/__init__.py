"""The engine of node flows: how a graph is compiled, walked, kept and resumed."""
