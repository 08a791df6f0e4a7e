"""Instructions for a chat model, made from texts and from lists of topics and tasks. Deterministic; fetches nothing."""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
import zlib
from collections.abc import Iterator, Sequence

Message = dict[str, str]

_TOPICS = """\
photosynthesis; the water cycle; gravity; black holes; the French Revolution; the Roman Empire; inflation;
supply and demand; climate change; renewable energy; electric cars; vaccines; antibiotics; the immune system;
the human heart; sleep; meditation; running; learning a language; public speaking; job interviews; time
management; saving money; budgeting; mortgages; stocks and bonds; insurance; starting a small business;
marketing on social media; writing an email; negotiation; leadership; teamwork; remote work; burnout;
gardening; composting; growing tomatoes; houseplants; baking bread; making soup; pasta; coffee; tea;
chocolate; healthy breakfasts; vegetarian cooking; food safety; camping; hiking; cycling; swimming; chess;
board games; photography; painting; the piano; the guitar; jazz; classical music; film noir; Shakespeare;
poetry; science fiction; detective novels; mythology; the Renaissance; the Silk Road; the printing press; the
steam engine; the internet; encryption; databases; recursion; sorting algorithms; machine learning; neural
networks; version control; unit tests; operating systems; compilers; cloud computing; computer viruses;
passwords; robots; the solar system; Mars; the Moon; comets; satellites; earthquakes; volcanoes; tides;
rivers; deserts; rainforests; coral reefs; whales; bees; birds; dogs; cats; horses; dinosaurs; evolution;
genes; atoms; the periodic table; acids and bases; electricity; magnets; light; sound; heat; probability;
fractions; percentages; prime numbers; geometry; statistics; logic; philosophy; ethics; democracy; human
rights; elections; trade; globalisation; cities; public transport; bridges; skyscrapers; ships; aeroplanes;
trains; bicycles; weather forecasts; maps; clocks; calendars; museums; libraries; schools; hospitals;
friendship; kindness; honesty; courage; patience; a rainy day; the sea; winter; autumn; a lost key; an old
house; a lighthouse; a train journey; a small village; a market; a secret"""

_TASKS = (
    "Help me draft the outline of a research paper on {}.",
    "Write a business proposal about {}.",
    "Please write a speech about {} for a school assembly.",
    "Write a press release about {}.",
    "Write a marketing plan for a company that deals with {}.",
    "Draft a grant application for a project on {}.",
    "Write a detailed report on {} for my manager.",
    "Write a script for a five-minute video about {}.",
    "Write a letter of complaint that concerns {}.",
    "Write a review of a film about {}.",
    "I am preparing a presentation on {}. Please write the text of five slides.",
    "Draft a policy document about {}.",
    "Write a case study about {}.",
    "Write a news article about {}.",
    "Please help me write a travel guide with a section on {}.",
    "Write a diary entry of someone who thinks about {}.",
    "Explain {} in simple terms.",
    "What is the history of {}?",
    "Write a short poem about {}.",
    "Give me five tips about {}.",
    "Write a short story that involves {}.",
    "What are the most common misconceptions about {}?",
    "Why is {} important?",
    "Write an introduction to an essay about {}.",
    "List ten interesting facts about {}.",
    "Explain {} to a ten-year-old child.",
    "What are the advantages and disadvantages of {}?",
    "Write a dialogue between two friends about {}.",
    "How would you teach a lesson about {}? Give an outline.",
    "Write a formal email to a colleague about {}.",
    "Summarize what one should know about {} in three paragraphs.",
    "What questions should I ask an expert about {}?",
    "Write a blog post about {}.",
    "Create a quiz with five questions and answers about {}.",
    "Describe {} in one paragraph.",
    "Write a product description for a book about {}.",
    "Make a week's plan for someone who wants to learn about {}.",
)

_PAIRS = (
    "What is the difference between {} and {}?",
    "Compare {} with {}.",
    "Write a short story about {} and {}.",
    "How are {} and {} related?",
    "Which should I learn about first, {} or {}? Why?",
)

_SUMS = (
    "A shop sells pens at {} cents and notebooks at {} cents. How much do {} of each cost?",
    "A train goes {} kilometres in {} hours. How far does it go in {} hours at the same speed?",
    "What is {} + {} * {}? Show your steps.",
    "Anna has {} apples, gives away {} and buys {} more. How many has she now?",
)

_ABOUT_PROSE = (
    "Summarize the following passage:\n\n{}",
    "Rewrite the following passage in modern English:\n\n{}",
    "Who appears in this passage, and what do they want?\n\n{}",
    "Continue this story:\n\n{}",
    "Describe the tone of this passage:\n\n{}",
)
_ABOUT_CODE = (
    "Explain what this Python code does:\n\n```python\n{}\n```",
    "Write a docstring for this function:\n\n```python\n{}\n```",
    "Write unit tests for this function:\n\n```python\n{}\n```",
    "How could this code be improved?\n\n```python\n{}\n```",
    "Add type annotations to this function:\n\n```python\n{}\n```",
)
_ABOUT_DOCS = (
    "What is {} in Python? Give an example.",
    "Explain {} in Python to a beginner.",
    "Write a short Python program about: {}.",
    "What should I know about {} when I write Python?",
)


def _chat(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


def _pick(choices: Sequence[str], key: str) -> str:
    return choices[zlib.crc32(key.encode()) % len(choices)]


def instructions_from_docs(text: str) -> Iterator[list[Message]]:
    """A question about each heading of a reStructuredText file, and a summary of each longer paragraph."""
    for heading in re.findall(r"(?m)^(\S[^\n]{3,70})\n[=\-~^*]{4,}$", text):
        name = re.sub(r":[\w:-]+:`[!~]?([^`]+)`", r"\1", heading).replace("`", "").replace("\\", "")
        yield _chat(_pick(_ABOUT_DOCS, heading).format(name))
    for paragraph in re.findall(r"(?:^|\n\n)([A-Z][^\n]+(?:\n\S[^\n]*){4,12})(?=\n\n)", text)[:4]:
        yield _chat(f"Explain this paragraph in your own words:\n\n{paragraph}")


def instructions_from_code(text: str) -> Iterator[list[Message]]:
    """Tasks about the functions of a Python file: to explain them, or to write them from their docstring."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    lines = text.splitlines()  # ast.get_source_segment() would go through all of them again for each function
    for function in functions[:: max(1, len(functions) // 8)][:8]:
        source = textwrap.dedent("\n".join(lines[function.lineno - 1 : function.end_lineno]))
        purpose = (ast.get_docstring(function) or "").split("\n\n")[0]
        if len(purpose) > 30:
            yield _chat(f"Write a Python function `{function.name}`. {purpose}")
        elif 120 < len(source) < 900:
            yield _chat(_pick(_ABOUT_CODE, source).format(source))


def instructions_from_prose(text: str) -> Iterator[list[Message]]:
    """Tasks about paragraphs of a chapter."""
    paragraphs = [p.strip() for p in text.split("\n\n") if 250 < len(p.strip()) < 900]
    for paragraph in paragraphs[:: max(1, len(paragraphs) // 6)][:6]:
        yield _chat(_pick(_ABOUT_PROSE, paragraph).format(paragraph))


def written_here() -> Iterator[list[Message]]:
    """Every task with every topic, pairs of topics, and sums."""
    topics = _TOPICS.replace("\n", " ").split("; ")
    for topic, task in itertools.product(topics, _TASKS):
        yield _chat(task.format(topic))
    for first, second in itertools.combinations(topics, 2):
        key = first + second
        if zlib.crc32(key.encode()) % 6 == 0:
            yield _chat(_pick(_PAIRS, key).format(first, second))
    for a, b, c in itertools.product(range(3, 40, 5), range(2, 12, 3), range(2, 9, 2)):
        yield _chat(_pick(_SUMS, f"{a} {b} {c}").format(a, b, c))
