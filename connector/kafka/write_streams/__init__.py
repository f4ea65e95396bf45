"""Write sessions, and commits of pending write streams (WRS)."""
