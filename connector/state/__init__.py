"""What commits store about streams and tables, and the reports made of it. No I/O."""
