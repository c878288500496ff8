"""Other protocols: each adapter converts its messages to `types.Request`, and events back."""
