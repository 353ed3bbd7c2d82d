"""One walk through a graph: visits, attempts, threads and errors."""
