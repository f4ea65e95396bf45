"""What users set: `connector.toml`, environment variables, and the settings of Java clients."""
