"""Expected values for the tokenizer and chat-template tests, from the PyPI packages tokenizers and Jinja2.

    pip install tokenizers==0.23.3 Jinja2==3.1.6 && python scripts/text_goldens.py

The template environment below has the settings that transformers documents for chat templates. Jinja's own `tojson` is the
wrong reference: it sorts keys and escapes HTML.
"""

import datetime
import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

NOW = 1765555384  # 2025-12-12 16:03:04 UTC


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


class Raised(TemplateError):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(now):
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    moment = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).replace(tzinfo=None)
    env.globals["strftime_now"] = lambda form: moment.strftime(form)
    return env


def render(template, context, now=NOW):
    try:
        return {"text": environment(now).from_string(template).render(**context)}
    except Raised as error:
        return {"raised": str(error)}
    except Exception as error:  # any other failure: the test only asks for one
        return {"failed": type(error).__name__}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "x>1 & y<2 it's é 🦙 a/b",
            "parameters": {
                "type": "object",
                "properties": {
                    "z": {"type": "number", "default": 1.0},
                    "a": {"type": ["string", "null"], "enum": ["q", None, True]},
                },
                "required": ["z"],
            },
        },
    }
]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi there\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
    {"role": "user", "content": "Again?"},
]
CONTEXT = {
    "messages": MESSAGES,
    "tools": TOOLS,
    "documents": None,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
}

HERE = pathlib.Path(__file__).parent


def templates():
    cases = (HERE / "template_cases.txt").read_text(encoding="utf-8").split("\n====\n")
    return {
        "now": NOW,
        "context": CONTEXT,
        "cases": [{"template": case, **render(case, CONTEXT)} for case in cases],
        "dates": dates(),
    }


def dates():
    forms = "%a|%A|%b|%B|%d|%-d|%_d|%e|%m|%-m|%y|%Y|%C|%H|%k|%I|%-I|%l|%p|%P|%M|%S|%f|%j|%w|%u|%U|%W|%V|%G|%g|%D|%F|%T|%R|%r|%c|%x|%X|%h|%%|%^a|%z%Z"
    moments = [0, NOW, 951782399, 951782400, 1704067199, 1704067200, 1735603200, 1483228799, 4107542399, 1230768000]
    return [{"now": now, "format": forms, **render("{{ strftime_now(form) }}", {"form": forms}, now)} for now in moments]


# --- tokenizers -------------------------------------------------------------------------------------------------------


def added(id, content, special=False, **flags):
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": content, **base, **flags, "special": special}


def definition(model, added_tokens=(), normalizer=None, pre_tokenizer=None, decoder=None, post_processor=None):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def bpe(vocab, merges=(), **options):
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: id for id, token in enumerate(vocab)},
        "merges": list(merges),
        **options,
    }


def alphabet():
    """GPT-2's characters for the bytes 0 to 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def bytes_256():
    tokens = [
        added(256, "<|im_start|>", special=True),
        added(257, "<|im_end|>", special=True),
        added(258, "<think>"),
        added(259, "</think>"),
        added(260, "<tool_response>"),
        added(261, "</tool_response>"),
    ]
    return definition(bpe(alphabet()), tokens, pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL)


def words():
    """Five symbols and one added token per flag."""
    tokens = [
        added(5, "<m>", lstrip=True, special=True),
        added(6, "<r>", rstrip=True, special=True),
        added(7, "<w>", single_word=True, special=True),
        added(8, "FOO", normalized=True),
        added(9, "BAR"),
        added(10, "<a>"),
        added(11, "<a><b>"),
        added(12, "<lr>", lstrip=True, rstrip=True),
    ]
    model = bpe(["a", "b", " ", "\u00a0", "[UNK]"], unk_token="[UNK]")
    return definition(model, tokens, normalizer={"type": "Lowercase"})


def merged(merges, **options):
    return definition(bpe(["a", "b", "c", "ab", "bc", "abc"], merges, **options))


def sentence_piece(prefix):
    """SentencePiece-style BPE: `▁` for a space, bytes for what the vocabulary lacks."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "e", "h", "l", "o", "▁h", "el", "lo", "▁hel", "▁hello", "▁a", "▁▁"]
    merges = [["▁", "h"], ["e", "l"], ["l", "o"], ["▁h", "el"], ["▁hel", "lo"], ["▁", "a"], ["▁", "▁"]]
    steps = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    undo = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.insert(0, {"type": "Prepend", "prepend": "▁"})
        undo.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    special = [added(0, "<unk>", special=True), added(1, "<s>", special=True), added(2, "</s>", special=True)]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    processor = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    model = bpe(pieces, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return definition(
        model,
        special,
        normalizer={"type": "Sequence", "normalizers": steps},
        decoder={"type": "Sequence", "decoders": undo},
        post_processor=processor,
    )


def word_piece():
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "##s", ",", "un", "##aff", "##able", "!", "漢"]
    special = [added(i, token, special=True) for i, token in enumerate(vocab[:4])]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: id for id, token in enumerate(vocab)},
    }
    processor = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    }
    return definition(
        model,
        special,
        normalizer=normalizer,
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        post_processor=processor,
    )


PLAIN_TEXTS = ["", "a", "hello", "Hello, world", "é🦙漢", "a\0b", "A<|im_end|>B", "<think>x</think>", "  a b ", "\n\t\r\n"]
FLAG_TEXTS = [
    "a  <m> \u00a0b", "a  <r> \u00a0b", "a<m>b", "a<w>b", "a <w> b", "<w>", "foo", "FOO", "bar", "BAR", "aFOOb", "<a><b>",
    "<a><a><b>b", "a <lr> <lr> b", "<m>", " <m>", "<r> ", "<r> <m>", "b<a>",
]
SPACED_TEXTS = [
    "", "a", " a", "  a", "hello", " hello", "hello hello", "a<s>a", "<s>", "<s>hello</s>", "é", "a🦙b", "a\0b", "▁a", "x",
    "\n", "   ",
]
WORD_TEXTS = ["", "Hello, worlds!", "unaffable", "Héllo", "hello漢world", "[CLS] hello", "xyz", "hello\0\tworld", "a" * 101]
MERGE_TEXTS = ["abc", "ab", "bc", "abcabc", "aabbcc", ""]


def tokenizers():
    sets = {
        "bytes_256": (bytes_256(), PLAIN_TEXTS),
        "flags": (words(), FLAG_TEXTS),
        "merge_bc": (merged(["b c"]), MERGE_TEXTS),
        "merge_bc_pairs": (merged([["b", "c"]]), MERGE_TEXTS),
        "merge_bc_whole_words": (merged(["b c"], ignore_merges=True), MERGE_TEXTS),
        "merge_bc_pairs_whole_words": (merged([["b", "c"]], ignore_merges=True), MERGE_TEXTS),
        "merge_ab_first": (merged([["a", "b"], ["b", "c"]]), MERGE_TEXTS),
        "merge_bc_first": (merged([["b", "c"], ["a", "b"]]), MERGE_TEXTS),
        "spaced": (sentence_piece(True), SPACED_TEXTS),
        "unprefixed": (sentence_piece(False), SPACED_TEXTS),
        "words": (word_piece(), WORD_TEXTS),
    }
    out = []
    for name, (tokenizer, texts) in sets.items():
        oracle = Tokenizer.from_str(json.dumps(tokenizer))
        cases = []
        for text in texts:
            ids = oracle.encode(text, add_special_tokens=False).ids
            oracle.encode_special_tokens = True
            plain = oracle.encode(text, add_special_tokens=False).ids
            oracle.encode_special_tokens = False
            cases.append(
                {
                    "text": text,
                    "ids": ids,
                    "plain": plain,
                    "surrounded": oracle.encode(text, add_special_tokens=True).ids,
                    "decoded": oracle.decode(ids, skip_special_tokens=False),
                    "skipped": oracle.decode(ids, skip_special_tokens=True),
                }
            )
        out.append({"name": name, "tokenizer": tokenizer, "cases": cases})
    return out


# The expressions as the models' tokenizer.json files have them.
PATTERNS = {
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "llama-bpe": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "smollm": [r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "gpt-4o": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
}
SPLIT_TEXTS = [
    "Hello, world! It's 2024.", "I'VE we'Ll don'T 'ſ 'S", "a  b   c\n\n d \t\n", "12345 ٣٤٥ ½ Ⅷ 7", "x\r\n\r\ny  \r\n",
    "日本語テキスト 한국어 漢字カナ", "naïve café e\u0301 ñ", "HelloWorld helloWORLD ǅabc", "...!? --> #include<a/b>\n/",
    "🦙👨‍👩‍👧 ok", "\u00a0\u3000x\u2028y", "क्षि ไทย العربية", "   ", "", "a\0b", "_under_score 'tis",
]


def pre_tokenizer_pieces():
    out = []
    for name, patterns in PATTERNS.items():
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        sequence = pre_tokenizers.Sequence(steps)
        cases = [{"text": t, "pieces": [piece for piece, _ in sequence.pre_tokenize_str(t)]} for t in SPLIT_TEXTS]
        out.append({"name": name, "cases": cases})
    return out


def streams():
    """What DecodeStream gives after each id: null while a character is incomplete."""
    tokenizer = Tokenizer.from_str(json.dumps(bytes_256()))
    out = []
    for text in ["é🦙漢", "abc", "a🦙<|im_end|>", "👨‍👩‍👧"]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        stream = decoders.DecodeStream(skip_special_tokens=False)
        out.append({"text": text, "ids": ids, "deltas": [stream.step(tokenizer, id) for id in ids]})
    llama = tokenizer.encode("🦙", add_special_tokens=False).ids
    cut = [{"ids": llama[:n], "decoded": tokenizer.decode(llama[:n])} for n in range(1, 5)]
    return {"streams": out, "cut": cut}


def main():
    folder = HERE.parent / "tests/data/text"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "templates.json": templates(),
        "tokenizers.json": tokenizers(),
        "pieces.json": pre_tokenizer_pieces(),
        "streams.json": streams(),
    }
    for name, value in files.items():
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace('},{"t', '},\n{"t')
        (folder / name).write_text(text + "\n", encoding="utf-8")


main()
