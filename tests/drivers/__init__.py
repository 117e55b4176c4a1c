"""What is particular to one driver."""
