"""HTTP/1.1: one port, its connections and exchanges; what is served there is an adapter's."""
