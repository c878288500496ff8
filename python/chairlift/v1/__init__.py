"""Generated from proto/ by scripts/generate_stubs.sh."""
