"""Publishes changes."""
