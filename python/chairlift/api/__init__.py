"""What every other part may import: values, errors, settings, checks of both."""
