"""The server as a whole: built, run, restarted."""
