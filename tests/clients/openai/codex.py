"""The Codex CLI asks the server one question, as its users do."""

import os
import subprocess
import tempfile
from pathlib import Path

INSTRUCTIONS = "You are a helpful assistant."


def check(codex: Path, url: str) -> None:
    """Run one turn; its own instructions are longer than the context of a small model."""
    with tempfile.TemporaryDirectory() as home:
        instructions, answer = Path(home) / "instructions.md", Path(home) / "answer.txt"
        instructions.write_text(INSTRUCTIONS, encoding="utf-8")
        provider = f'{{name="chairlift", base_url="{url}", wire_api="responses"}}'
        settings = {
            "model_provider": '"chairlift"',
            "model_providers.chairlift": provider,
            "model_instructions_file": f'"{instructions}"',
            "model_context_window": "8192",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [codex, "exec", "--skip-git-repo-check", "--ephemeral", "-s", "read-only"]
        command += ["-m", "smollm2", "-o", answer, *options, "What is the capital of France?"]
        environment = os.environ | {"CODEX_HOME": home}
        run = subprocess.run(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert answer.read_text(encoding="utf-8").strip(), run.stdout + run.stderr
    print("codex: as expected")
