"""`python -m chairlift` is the `chairlift` command."""

from chairlift.cli import app

if __name__ == "__main__":
    app(prog_name="chairlift")
