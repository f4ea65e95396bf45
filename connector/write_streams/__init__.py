"""Write streams: names, kinds, states, and the decisions about appends and releases (WRS)."""
