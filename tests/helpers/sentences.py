"""What every error is."""

import re


def assert_one_sentence(error, *parts: str):
    """error: what pytest.raises caught. parts: what it must say."""
    text = str(error.value)
    assert "\n" not in text and not text.endswith(".") and ". " not in text, text
    assert len(re.sub(r"\d{20,}", "", text)) < 300, text
    for part in parts:
        assert part in text, f"{part!r} is not in: {text}"
