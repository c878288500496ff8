"""Generated from proto/ by `make stubs`."""
