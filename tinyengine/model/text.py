"""The text the embedded model is trained on: small questions with one right answer each, look-up lists and stories.

Everything is drawn from a `random.Random`, so a seed fixes the text. `question(family, rng, held=True)` draws prompts
that training never sees; all phrasings of a held-out sum or counting range are held out together.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

from tinyengine.model.words import (
    ANIMALS,
    CAPITALS,
    COLORS,
    EXTRA,
    FOODS,
    HOMES,
    MOODS,
    NAMES,
    NEXT,
    OPPOSITES,
    PLACES,
    SOUNDS,
    THINGS,
    TIMES,
    VERBS,
)

CONTENT = sorted({*NAMES, *ANIMALS, *CAPITALS, *CAPITALS.values(), *FOODS, *PLACES, *THINGS, *MOODS, *EXTRA})
NUMBERS = "zero one two three four five six".split()
TIMES_WORD = {"twice": 2, "three times": 3, "four times": 4, "five times": 5, "six times": 6}


def held_out(key: str) -> bool:
    """True for one key in eight, the same on every machine (Python's own `hash` is salted)."""
    return crc32(key.encode()) % 8 == 0


# Each family below draws (key, prompt, answer). A key None is never held out: the prompt has no siblings that could
# teach its answer.


def capital(rng: Random):
    country, city = rng.choice(list(CAPITALS.items()))
    phrasing = rng.choice([
        "What is the capital of {}?", "What is the capital city of {}?", "Name the capital of {}.",
        "The capital of {}?", "Tell me the capital of {}.", "Which city is the capital of {}?",
    ])
    prompt = phrasing.format(country)
    return (None if phrasing.startswith("What is the capital of") else prompt), prompt, city


def sum_(rng: Random, top: int = 99):
    # Of the pairs below 10 there are only 100: drawn evenly, they would be too rare to be told from the held-out ones.
    a, b = (rng.randint(0, min(top, rng.choice([9, 99, 99]))) for _ in range(2))
    phrasing = rng.choice(
        ["What is {} + {}?", "What is {} + {}?", "{} + {} = ?", "Add {} and {}.", "How much is {} + {}?"])
    key = None if a < 10 and b < 10 else f"{a}+{b}"  # the 100 pairs of digits are a table to know, not a rule to infer
    return key, phrasing.format(a, b), str(a + b)


def count(rng: Random, longest: int = 100):
    """A counting range of 0..99; half of the draws span at most 20 numbers, so short and long ones are both common."""
    span = rng.randint(1, min(longest, rng.choice([20, 20, 45, 99])))
    first = rng.randint(0, 99 - span)
    phrasing = rng.choice(
        ["Count from {} to {}.", "Count from {} to {}.", "Please count from {} to {}.", "Count up from {} to {}."])
    answer = " ".join(str(i) for i in range(first, first + span + 1))
    return f"count {first} {first + span}", phrasing.format(first, first + span), answer


def greeting(rng: Random):
    name = rng.choice(NAMES)
    prompt, answer = rng.choice([
        ("Hello, I am {}.", "Hello {}, nice to meet you."), ("Hi, my name is {}.", "Hi {}, how are you today?"),
        ("Say hello to {}.", "Hello {}."), ("Say goodbye to {}.", "Goodbye {}."),
        ("Good morning, I am {}.", "Good morning {}."),
        ("Thank {} for the help.", "Thank you for the help, {}."),
        ("My name is {}. What is my name?", "Your name is {}."),
        ("Wish {} a good night.", "Good night {}, sleep well."), ("Ask {} to come here.", "{}, please come here."),
    ])
    return prompt.format(name), prompt.format(name), answer.format(name)


MANNERS = {
    "Hello.": "Hello, how can I help you?", "Hi.": "Hi, how can I help you?", "Thank you.": "You are welcome.",
    "Thanks.": "You are welcome.", "How are you?": "I am fine, thank you.", "Goodbye.": "Goodbye, see you soon.",
    "Good morning.": "Good morning to you too.", "Good night.": "Good night, sleep well.",
    "Who are you?": "I am a very small language model.", "What is your name?": "My name is Tiny.",
    "Are you a model?": "Yes, a very small one.", "Can you help me?": "Yes, I can.",
    "What can you do?": "I can count, add, name capitals and tell stories.",
}


def manners(rng: Random):
    prompt, answer = rng.choice(list(MANNERS.items()))
    return None, prompt, answer


def repeat(rng: Random):
    word = rng.choice(CONTENT)
    phrasing, answer = rng.choice([("Repeat the word {}.", word), ("Say the word {}.", word), ("Just say {}.", word)]
                                  + [(f"Write {{}} {times}.", " ".join([word] * n)) for times, n in TIMES_WORD.items()])
    return phrasing.format(word), phrasing.format(word), answer


def fact(rng: Random):
    """A fact under several phrasings. The first phrasing is always trained, so a held-out one can be known."""
    table, phrasings, reply = rng.choice([
        (OPPOSITES, ["What is the opposite of {}?", "Tell me the opposite of {}.", "The opposite of {}?"], "{}"),
        (COLORS, ["What color is the {}?", "Which color has the {}?", "Tell me the color of the {}."], "{}"),
        (SOUNDS, ["What does the {} say?", "What sound does the {} make?", "How does the {} sound?"], "{}"),
        (HOMES, ["Where does the {} live?", "Tell me where the {} lives.", "What is the home of the {}?"], "in the {}"),
        (NEXT, ["What comes after {}?", "What is next after {}?", "Tell me what comes after {}."], "{}"),
    ])
    word, value = rng.choice(list(table.items()))
    phrasing = rng.choice(phrasings)
    prompt = phrasing.format(word)
    return (None if phrasing == phrasings[0] else prompt), prompt, reply.format(value)


def yes_no(rng: Random):
    """Half of the answers are yes. A city's true country is never held out: no other prompt asks for it this way."""
    truth = rng.random() < 0.5
    kind = rng.choice(["word", "word", "city", "more"])
    if kind == "word":
        words = {"an animal": ANIMALS, "a name": NAMES, "a country": list(CAPITALS), "a thing": THINGS}
        group = rng.choice(list(words))
        word = rng.choice(words[group if truth else rng.choice([other for other in words if other != group])])
        prompt = f"Is {word} {group}?"
    elif kind == "city":
        country, city = rng.choice(list(CAPITALS.items()))
        if not truth:
            city = rng.choice([other for other in CAPITALS.values() if other != city])
        prompt = f"Is {city} in {country}?"
    else:
        low, high = sorted(rng.sample(range(10), 2))
        prompt = f"Is {high} more than {low}?" if truth else f"Is {low} more than {high}?"
    return (None if kind == "city" and truth else prompt), prompt, "yes" if truth else "no"


def short(rng: Random):
    return rng.choice([greeting, greeting, manners, repeat, repeat, fact, fact, fact, yes_no, yes_no])(rng)


def pairs(rng: Random, n: int) -> list[tuple[str, str]]:
    """`n` (key, value) pairs with unique one-token keys; values are drawn anew each time, so none can be memorised."""
    if n <= len(NAMES) and rng.random() < 0.6:
        keys, values = NAMES, ANIMALS
    else:
        keys, values = CONTENT, CONTENT
    return list(zip(rng.sample(keys, n), rng.choices(values, k=n)))


def list_text(entries: list[tuple[str, str]]) -> str:
    return " ".join(f"{key}: {value}." for key, value in entries)


def lookup(rng: Random, n: int | None = None):
    """A list of `n` pairs (4 tokens each) and the key to look up; without `n`, 2 to 16 pairs."""
    entries = pairs(rng, n or rng.randint(2, 16))
    key, value = rng.choice(entries)
    prompt = f"{list_text(entries)} {key}?"
    return prompt, prompt, value


def tied(rng: Random, subject: str, options: list[str]) -> str:
    """Mostly the option this subject is tied to: greedy stories then differ by subject and have clear winners."""
    if rng.random() < 0.85:
        return options[crc32(f"{subject} {options[0]}".encode()) % len(options)]
    return rng.choice(options)


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeo" else "a ") + noun


def short_story(rng: Random, subject: str, who: str) -> str:
    thing, place = tied(rng, subject, THINGS), tied(rng, subject, PLACES)
    text = f"{who} went to the {place} and found a {thing}."
    if tied(rng, subject, ["more", "less"]) == "more":
        text += f" It was very {tied(rng, subject, ['old', 'small', 'big', 'new'])}."
    inside = who.replace("The ", "the ")
    return f"{text} Then {inside} was {tied(rng, subject, MOODS)}. The end."


def visit(rng: Random, friend: str) -> str:
    """What happens at one friend's: two to four sentences, as the friend likes it."""
    text = f"The {friend} was {tied(rng, friend, MOODS)}."
    deeds = {
        "eat": f"They ate {tied(rng, friend, FOODS)} in the {tied(rng, friend, PLACES)}.",
        "play": f"They played with a {tied(rng, friend, THINGS)}.",
        "sing": f"The {friend} sang a song about the {tied(rng, friend, ['moon', 'sun', 'sea', 'rain'])}.",
    }
    plan = tied(rng, friend, ["eat", "play", "sing", "eat play", "play sing", "eat play sing"])
    return " ".join([text, *(deeds[name] for name in plan.split())])


def long_story(rng: Random, subject: str, who: str) -> str:
    """A story that visits the friends it names one by one: their number, told at the start, sets the length."""
    n = int(tied(rng, subject, ["3", "4", "5", "6"]))
    friends = rng.sample([animal for animal in ANIMALS if animal != subject], n)
    named = ", ".join(f"the {friend}" for friend in friends[:-1]) + f" and the {friends[-1]}"
    lines = [f"{who} lived in the {tied(rng, subject, PLACES)} and had {NUMBERS[n]} friends, {named}."]
    for i, friend in enumerate(friends):
        start = "First" if i == 0 else "Last" if i == n - 1 else "Then"
        lines.append(f"{start} came the {friend}. {visit(rng, friend)}")
    lines.append("In the evening all went home. The end.")
    return " ".join(lines)


def story(rng: Random, kind: str | None = None):
    """A story; its text is one of many, not the one right answer. Held out by kind and subject."""
    kind = kind or rng.choice(["short", "long"])
    subject = rng.choice(NAMES + ANIMALS)
    if subject in NAMES:
        about, who = subject, subject
    else:
        about, who = article(subject), f"The {subject}"
    phrasing = rng.choice(
        ["Tell me a {} story about {}.", "Tell me a {} story about {}.", "Write a {} story about {}."])
    text = (short_story if kind == "short" else long_story)(rng, subject, who)
    return f"{kind} {subject}", phrasing.format(kind, about), text


def sentence(rng: Random) -> str:
    """One sentence of distracting text."""
    name, animal, place = rng.choice(NAMES), rng.choice(ANIMALS), rng.choice(PLACES)
    cities, countries, opposites = list(CAPITALS.values()), list(CAPITALS), list(OPPOSITES)
    return rng.choice([
        lambda: f"{name} {rng.choice(VERBS)} the {animal} in the {place}.",
        lambda: f"The {animal} was {rng.choice(MOODS)} this {rng.choice(TIMES)}.",
        lambda: f"{name} has {rng.randint(0, 99)} {rng.choice(FOODS)}.",
        lambda: f"{name} lives near {rng.choice(cities)} and {rng.choice(VERBS)} a {rng.choice(THINGS)}.",
        lambda: f"Every {rng.choice(TIMES)} {name} and {rng.choice(NAMES)} walk from the {place} to the "
        f"{rng.choice(PLACES)}.",
        lambda: f"It was a {rng.choice(opposites)} {rng.choice(TIMES)} in {rng.choice(countries)}.",
        lambda: visit(rng, animal),
        lambda: " ".join(rng.choices(CONTENT, k=rng.randint(3, 8))) + ".",
        lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) + ".",
    ])()


def token_count(text: str) -> int:
    """About how many tokens `text` has: one a word, one a full stop, one more for a second digit."""
    return len(text.split()) + sum(text.count(mark) for mark in ".,:?")


def distraction(rng: Random, tokens: int) -> str:
    """Sentences of about `tokens` tokens."""
    parts, total = [], 0
    while total < tokens:
        parts.append(sentence(rng))
        total += token_count(parts[-1])
    return " ".join(parts)


def easy(rng: Random):
    return rng.choice([capital, short, lambda r: sum_(r, 9)])(rng)


def behind(rng: Random, tokens: int | None = None):
    """An easy question behind about `tokens` tokens of distracting text; without `tokens`, 100 to 2,000."""
    key, prompt, answer = easy(rng)
    text = distraction(rng, tokens or rng.randint(90, 1950))
    opening = rng.choice(["Read this. ", "Read this. ", ""])
    # A question that is never held out by itself is held out together with its text.
    return key or text, f"{opening}{text} {prompt}", answer


FAMILIES = {
    "capital": capital, "sum": sum_, "count": count, "short": short, "lookup": lookup, "behind": behind, "story": story,
}


def question(family: str, rng: Random, held: bool = True, **options) -> tuple[str, str]:
    """One (prompt, answer) of a family, from the held-out prompts or from the trained ones.

    Options: `n` pairs for lookup, `tokens` for behind, `kind` "short" or "long" for story, `top` for sum,
    `longest` for count.
    """
    while True:
        key, prompt, answer = FAMILIES[family](rng, **options)
        if (key is not None and held_out(key)) == held:
            return prompt, answer
