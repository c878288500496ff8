"""`chairlift batch`: offline jobs from a file to a file."""
