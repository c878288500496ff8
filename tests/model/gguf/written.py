"""GGUF files that hold a tokenizer and no tensors, and texts of many scripts."""

from pathlib import Path
from typing import Any

import gguf

TEXT = "\n".join(
    (
        "The chairlift never stops: its riders step on a moving chair, and off at the top.",
        "It's snowing, isn't it? I'd say they've won; we'll see. IT'S SNOWING, THEY'VE WON, WE'LL",
        "Der Sessellift hält nie an; Straße, Ærø, œuvre, ñandú, İstanbul, naïve, e\u0301tude",
        "Подъёмник никогда не останавливается. Ψηλά στο βουνό, ὀδύσσεια.",
        "缆车从不为乘客停下。他们踏上移动的椅子\uff01リフトは止まらない。カタカナ、ひらがな。",
        "스키 리프트는 멈추지 않습니다. المصعد لا يتوقف أبدا، ١٢٣. המעלית אינה עוצרת: שָׁלוֹם",
        "कुर्सी लिफ्ट कभी नहीं रुकती, १२३। เก้าอี้ลิฟต์ไม่เคยหยุด ๑๒๓",
        "🚡 🏔️⛷️ 👩‍👩‍👧‍👦 🇨🇭 👍🏽",
        "1 12 123 1234 12345 3.14159 1,000,000 x2y3 ² ½ Ⅷ 2026-11-24",
        "def ride(chair):\r\n\treturn chair.next()  # no stops\r\n\r\n\r\n\tif a_b != cD: x += [1]",
        "runs  of   spaces     here          and\t\ttabs \t mixed\u00a0\u3000wide   \n \n  \n",
        "camelCaseHTTPServer/path//to/file \"quoted\" (a) <b> {c} $d ~/e @f #g ... --- '' !!!\n",
        "https://example.org/a?b=c&d=e ' s 's 'S 'll 'LL ' ll ",
    )
)
TEXTS = [TEXT, *TEXT.split("\n"), "", " ", "\n", "  \n", "a", " a", "\x00\x7f\u2028\ufffd", "▁▁ a▁"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def write(
    path: Path,
    *,
    model: str | None = "gpt2",
    architecture: str = "llama",
    without: tuple[str, ...] = (),
    **values: Any,
) -> Path:
    """Write `tokenizer.ggml.<name>` for each value; a `__` in a name is a dot.

    A name that begins with `tokenizer` is a whole key. Lists are arrays of strings, `int32` or
    `float32`; integers are `uint32`.
    """
    writer = gguf.GGUFWriter(path, architecture)
    keyed = {
        name.replace("__", ".") if name.startswith("tokenizer") else f"tokenizer.ggml.{name}": value
        for name, value in ({"model": model} | values).items()
        if value is not None and name not in without
    }
    for key, value in keyed.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def pieces_by_id(vocabulary: dict[str, int]) -> list[str]:
    """Return the tokens in the order of their ids."""
    return sorted(vocabulary, key=vocabulary.__getitem__)
