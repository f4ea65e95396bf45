"""Delta tables without a JVM: the only package that imports deltalake."""
