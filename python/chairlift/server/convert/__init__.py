"""Messages of the proto to values and back."""
