"""The settings of users: `connector.toml`, environment variables, and the settings of Java
clients.
"""
