"""The graph of a flow: its nodes and edges, compiled into stages."""
