"""What can be known of tables without a JVM, through the `deltalake` package, which is imported nowhere else."""
