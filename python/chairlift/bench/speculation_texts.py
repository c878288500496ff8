"""Prompts whose answers repeat much of them, or nothing; written for this measurement."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one kind."""

    name: str
    prompts: tuple[str, ...]


_CODE: Final = (
    (
        "count",
        "total",
        """def average_temperature(readings, default):
    count = 0
    sum_of_values = 0.0
    for reading in readings:
        if reading is None:
            continue
        sum_of_values = sum_of_values + reading
        count = count + 1
    if count == 0:
        return default
    return sum_of_values / count
""",
    ),
    (
        "stack",
        "pending",
        """def is_balanced(text):
    pairs = {")": "(", "]": "[", "}": "{"}
    stack = []
    for character in text:
        if character in pairs.values():
            stack.append(character)
        elif character in pairs:
            if not stack or stack.pop() != pairs[character]:
                return False
    return not stack
""",
    ),
    (
        "balance",
        "amount",
        """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, value):
        if value <= 0:
            raise ValueError("the value must be positive")
        self.balance = self.balance + value

    def withdraw(self, value):
        if value > self.balance:
            raise ValueError("the balance is too low")
        self.balance = self.balance - value
""",
    ),
    (
        "lines",
        "rows",
        """def read_settings(path):
    settings = {}
    with open(path) as file:
        lines = file.readlines()
    for line in lines:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, value = line.split("=", 1)
        settings[name.strip()] = value.strip()
    return settings
""",
    ),
    (
        "left",
        "first",
        """def merge_sorted(one, two):
    left = 0
    right = 0
    merged = []
    while left < len(one) and right < len(two):
        if one[left] <= two[right]:
            merged.append(one[left])
            left += 1
        else:
            merged.append(two[right])
            right += 1
    merged.extend(one[left:])
    merged.extend(two[right:])
    return merged
""",
    ),
    (
        "words",
        "tokens",
        """def most_frequent(text, number):
    words = text.lower().split()
    counts = {}
    for word in words:
        word = word.strip(".,;:!?")
        if word:
            counts[word] = counts.get(word, 0) + 1
    ordered = sorted(counts, key=counts.get, reverse=True)
    return ordered[:number]
""",
    ),
    (
        "grid",
        "board",
        """def count_neighbours(grid, row, column):
    number = 0
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if down == 0 and right == 0:
                continue
            y = row + down
            x = column + right
            if 0 <= y < len(grid) and 0 <= x < len(grid[0]):
                number += grid[y][x]
    return number
""",
    ),
    (
        "queue",
        "waiting",
        """def shortest_path(graph, start, goal):
    queue = [[start]]
    seen = {start}
    while queue:
        path = queue.pop(0)
        if path[-1] == goal:
            return path
        for neighbour in graph[path[-1]]:
            if neighbour not in seen:
                seen.add(neighbour)
                queue.append(path + [neighbour])
    return None
""",
    ),
)

_TEXTS: Final = (
    "The lighthouse on the northern cape was built in 1871 by masons who had come over the "
    "mountains with forty mules. Its lamp burned whale oil for the first nine years, then "
    "paraffin, and was changed to electric light only in the spring of 1934. The last keeper, "
    "Ingrid Solheim, wrote down the weather three times a day for twenty-six years and never "
    "missed a morning.",
    "Clay soils hold water longer than sandy soils because their particles are small and "
    "flat, so that the spaces between them are narrow. A gardener who digs such a soil when "
    "it is wet presses these spaces shut, and the roots of beans and carrots then find no "
    "air. It is better to wait until a handful of earth crumbles, and to mix in compost every "
    "autumn.",
    "In the second week of the expedition the engine of the smaller boat failed near the "
    "mouth of the river. Captain Okafor ordered the crew to tie both boats together and to "
    "row in turns of twenty minutes. They reached the village of Tamba after dark, where a "
    "carpenter lent them a forge, and by the next noon a new pin had been made from an old "
    "plough.",
    "A bakery sells three kinds of bread: a rye loaf of 900 grams for 4.20, a wheat loaf of "
    "600 grams for 3.10, and a seed loaf of 750 grams for 4.80. On Saturdays every second "
    "loaf costs half its price, and customers who bring their own bag get ten cents back. The "
    "shop opens at six and closes at one, except in August, when it opens an hour later.",
    "The library keeps its maps in a room without windows, because daylight fades the green "
    "and yellow inks first. Each map lies flat in a drawer of oak, between two sheets of "
    "paper without acid. Visitors may look at four maps a day; they wash their hands before, "
    "use pencils alone, and put a small weight of leather on each corner of the sheet.",
    "Glass is made from sand, soda and lime, which are melted together at about 1500 degrees. "
    "Soda lowers the temperature at which the sand melts, and lime keeps the finished glass "
    "from dissolving in water. A sheet for a window is poured on a bath of liquid tin, where "
    "it spreads out evenly and cools slowly, so that both of its sides are perfectly smooth.",
    "When the orchestra moved to its new hall, the players noticed that the violins sounded "
    "thin in the last rows. An engineer hung eleven curved panels of birch above the stage "
    "and turned each by a few degrees, evening after evening, while a student played the same "
    "scale. After five weeks the sound was warm in every row but the ninth, which was sold at "
    "a lower price.",
    "The train to the coast leaves platform seven at 8:14 and stops in Marlow, Easton and "
    "Bray. Passengers for the islands change in Easton, where the ferry waits until the train "
    "has come in. Bicycles travel in the last carriage and need a ticket of their own. On "
    "public holidays the first train runs an hour later, and the ferry sails only twice, at "
    "ten and at four.",
)

_QUESTIONS: Final = (
    "Write a short story about a fox who learns to swim.",
    "Explain why the sky is blue to a child of ten.",
    "What should one think about before buying a used car?",
    "Describe a walk through a market early in the morning.",
    "How do bees find their way back to the hive?",
    "Give advice to a friend who is nervous about a new job.",
    "Why did people in the Middle Ages build castles on hills?",
    "Write a letter to a teacher who has helped you.",
)

CODE_EDITS: Final = Workload(
    "code edits",
    tuple(
        f"Rename the variable `{old}` to `{new}` in this Python code. Give the whole code.\n\n"
        f"```python\n{code}```"
        for old, new, code in _CODE
    ),
)
QUOTES: Final = Workload(
    "quotes", tuple(f"{text}\n\nRepeat the text above word for word." for text in _TEXTS)
)
FREE_TEXT: Final = Workload("free text", _QUESTIONS)

WORKLOADS: Final = (CODE_EDITS, QUOTES, FREE_TEXT)
