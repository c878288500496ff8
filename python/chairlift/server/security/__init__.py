"""Access: tokens, certificates, and files that are reloaded."""
