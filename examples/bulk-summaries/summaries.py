"""Write requests that sum up the text files of a folder, and print the answers.

Run `python summaries.py write FOLDER > requests.jsonl`, `chairlift batch`, then
`python summaries.py show summaries.jsonl`.
"""

import json
import sys
from pathlib import Path


def write(folder: Path) -> None:
    """Print a request for each text, a line each."""
    for path in sorted(folder.glob("*.txt")):
        text = f"Sum up in one sentence:\n\n{path.read_text(encoding='utf-8')}"
        messages = [{"role": "user", "content": text}]
        request = {"id": path.name, "messages": messages, "max_tokens": 60, "temperature": 0}
        print(json.dumps(request))


def show(answers: Path) -> None:
    """Print the name of each text and its summary, or why there is none."""
    for line in answers.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        text = answer["error"]["message"] if "error" in answer else answer["text"]
        print(f"{answer['id']}: {text}")


if __name__ == "__main__":
    {"write": write, "show": show}[sys.argv[1]](Path(sys.argv[2]))
