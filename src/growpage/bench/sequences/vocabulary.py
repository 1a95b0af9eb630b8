"""The words of the sequences language: every word, number or newline is one token.

Each role has words of its own, so that a number read as a value is never taken for a count or a name:

    15      a value, 0..52 (all sums are modulo 53)
    (27)    the number of steps left in a phase
    #4      the name of a ledger item
    /3      the last ledger item of the sweep in progress
    a7      the name of a fact in the prompt
    river   a row of the lookup table; >river points to it
    1.      a phase of the plan
"""

from growpage.errors import UsageError

MODULUS = 53
MAX_COUNT = 128  # steps of one phase
MAX_ITEMS = 130  # ledger items: every step makes one, two stand at the start
MAX_FACTS = 128
MAX_PHASES = 3

PAD, UNK, BOS, EOS = "<pad>", "<unk>", "<bos>", "<eos>"
SPECIAL = (PAD, UNK, BOS, EOS)
THINK, END_THINK, NEWLINE = "<think>", "</think>", "\n"
STRUCTURE = (
    THINK, END_THINK, NEWLINE, "start", "phase", "note", "end", "answer", "add", "from", "sum",
    "list", "table", "walk", "ledger", "facts", "lookup", "+", "=",
)  # fmt: skip

NAMES = tuple(
    """
    acorn amber anchor apple arrow badge bamboo banjo barn basil basket beach beacon bell berry birch
    blanket boat bottle bridge bronze brook bucket button cabin cactus camel candle canoe canyon castle cedar
    chalk cherry circle clay cliff cloud clover coast comet copper coral cotton crane crater creek crown
    daisy delta desert drum dune eagle earth echo elm ember falcon farm feather fern field flame
    flute forest fossil fountain fox frost garden garnet gate ginger glacier grove harbor hazel heron hill
    honey horn island ivory ivy jade jar jasmine kettle kite lake lamp lantern lemon lily linen
    lion lotus maple marble meadow mint mirror moon moss oak ocean olive onyx opal orchid otter
    owl palm pearl pebble pepper pine planet plum pond poppy quartz quill raven reef river willow
    """.split()  # noqa: SIM905  (a block of words reads better)
)
MAX_ROWS = len(NAMES)

VALUES = tuple(str(i) for i in range(MODULUS))
COUNTS = tuple(f"({i})" for i in range(MAX_COUNT + 1))
ITEMS = tuple(f"#{i}" for i in range(MAX_ITEMS))
SWEEPS = tuple(f"/{i}" for i in range(MAX_ITEMS))
FACTS = tuple(f"a{i}" for i in range(MAX_FACTS))
POINTERS = tuple(f">{name}" for name in NAMES)
ORDINALS = tuple(f"{i + 1}." for i in range(MAX_PHASES))

WORDS = SPECIAL + STRUCTURE + ORDINALS + VALUES + COUNTS + ITEMS + SWEEPS + FACTS + NAMES + POINTERS
TOKEN_ID = {word: index for index, word in enumerate(WORDS)}


def split_words(text: str) -> list[str]:
    """The words of `text`; a newline is a word, spaces only separate."""
    return [word for word in text.replace(NEWLINE, f" {NEWLINE} ").split(" ") if word]


def encode(text: str) -> list[int]:
    """Token ids of `text`. Raises `UsageError` for the first word outside the language."""
    words = split_words(text)
    for word in words:
        if word not in TOKEN_ID:
            raise UsageError(
                f"prompt word {word!r}: not in the vocabulary of the sequences language."
                " This model reads problems of bench=sequences only."
            )
    return [TOKEN_ID[word] for word in words]


def decode(ids: list[int]) -> str:
    """The text of `ids`, words separated by one space."""
    return " ".join(WORDS[index] for index in ids)
