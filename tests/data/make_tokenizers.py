#!/usr/bin/env python3
"""Makes tokenizer_*.json, small tokenizers in the forms of well-known models, and tokenizer_cases.json, texts with the
numbers that the `tokenizers` package gives them. Needs that package (0.23); the tests need only the results. Arguments:
names of the tokenizers to make again; others stay as they are. With --check nothing is written: the package must give the
numbers that are there."""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus():
    texts = [ROOT / "README.md", ROOT / "docs/language.md", ROOT / "docs/design.md"]
    lines = [line for t in texts for line in t.read_text().splitlines(keepends=True)]
    return lines + ["Grüße aus München, 1234567 Straßen. ", "日本語のテキスト。", "Привет, мир! ", "naïve café 😀👍🏽 "] * 4


def save(name, t):
    t.save(str(HERE / ("tokenizer_%s.json" % name)), pretty=False)


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_tokens([AddedToken("kvasir", single_word=True), AddedToken("<mask>", lstrip=True), AddedToken("<b>", rstrip=True)])
    return t


def llama3(pattern):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=560, special_tokens=special, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def qwen():
    t = llama3(LLAMA3.replace("{1,3}", ""))
    t.normalizer = normalizers.NFC()
    t.add_tokens([AddedToken("<e\u0301>")])  # found as what it is after the normaliser
    return t


def nfd():
    t = words()
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(r"\p{Mn}+"), "")])
    return t


def with_bytes(t, size):
    """A trained model's JSON with tokens for bytes, as sentencepiece models have them, in front."""
    d = json.loads(t.to_str())
    vocab, special = d["model"]["vocab"], ["<unk>", "<s>", "</s>"]
    names = special + ["<0x%02X>" % b for b in range(256)] + [v for v in sorted(vocab, key=vocab.get) if v not in special]
    d["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    d["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    d["added_tokens"] = [dict(id=i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                         for i, s in enumerate(special)]
    return d


def llama2():
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()  # for training only: words
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=80,
                                                        show_progress=False))
    d = with_bytes(t, 400)
    d["pre_tokenizer"] = None
    d["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    d["added_tokens"].append(dict(id=len(d["model"]["vocab"]), content="<user>", single_word=False, lstrip=False,
                                  rstrip=False, normalized=True, special=False))
    return Tokenizer.from_str(json.dumps(d))


def metaspace():
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="first"),
                                               pre_tokenizers.Digits(individual_digits=True)])
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"], limit_alphabet=70,
                                                        show_progress=False))
    return t


def words():
    t = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    t.normalizer = normalizers.Strip()
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]"], limit_alphabet=60, show_progress=False))
    return t


def by_patterns(*patterns):
    """Each unknown run of a piece is one token, so that numbers tell where pieces end."""
    t = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=200, special_tokens=["[UNK]"], limit_alphabet=40, show_progress=False))
    return t


def bert():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[CLS]", "[SEP]"],
                                                              limit_alphabet=80, show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return t


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(corpus(), trainers.UnigramTrainer(vocab_size=350, special_tokens=["<unk>", "<s>", "</s>"],
                                                            unk_token="<unk>", show_progress=False))
    return t


def unigram_bytes():
    d = json.loads(unigram().to_str())
    d["model"]["vocab"] += [["<0x%02X>" % b, 0.0] for b in range(256)]
    d["model"]["byte_fallback"] = True
    d["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}
    d["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, d["pre_tokenizer"],
                                                                {"type": "Punctuation", "behavior": "Contiguous"}]}
    return Tokenizer.from_str(json.dumps(d))


def cases():
    plain = ["", " ", "a", "Hello world", "  two  spaces   here ", "I'm you'll we've THEY'RE it'S don't 'tis", "x\n\ny\r\n\r\n  z\t\tw ",
             "1 12 123 1234 1234567890 ²½Ⅷ ٣٤٥", "Grüße, naïve café — “quotes” … ſ 'ſ K'S", "日本語のテキスト。中文字符", "Привет, мир! ελληνικά",
             "😀👍🏽 👨‍👩‍👧 🇩🇪", "e\u0301 a\u0308\u0323 \u200d\u200c\u00a0\u3000\u2028end", "\x00\x01\x7f\x85 control",
             "kvasir kvasirs (kvasir) kvasir_x", "a <mask> b<mask>c", "a<b>  b", "<|endoftext|>x<|end_of_text|> <|begin_of_text|>",
             "<s>text</s> <unk> <user> x", "[UNK] <0x41> <0xZZ>", "▁already ▁▁ marked▁", "ⓐⓑ 🄰🄱 ﬁ ǅ ʰ ª", "foo_bar.baz(qux) == 0x1F; // path/to/file",
             "\t\tint main(void) {\n\t\treturn 0;\n\t}\n", "ỒỐ ồố 각가 ಠ_ಠ क्षत्रिय", "AbC ABc aBC HTTPServer iPhone 'S'T", "!!!???...   \n   ",
             "\u1100\u1161\u11a8\uac00\u11a7 \u1e69\u0323\u0307 q\u0307\u0323 \u212b\u2126 \u0344 \u0958 <e\u0301> <\u00e9>",
             "unassigned \u0378 \U000e0fff"]
    r = random.Random(7)
    alphabet = ["a", "b", "e", "t", " ", " ", "  ", "\n", "\r", "\t", "1", "2", "'", "s", "S", "re", ".", "-", "é", "ß", "日", "😀", "\u0301", "ſ",
                "<", ">", "<mask>", "kvasir", "▁", "\u00a0", "Б", "_", "the", "ing"]
    return plain + ["".join(r.choice(alphabet) for _ in range(r.randint(1, 30))) for _ in range(60)]


# DeepSeek has the first, BLOOM the second.
LINES = [r"\s+$", r" ?[^(\s|[.,!?…。，、।۔،])]+", r"^\s"]
WORDS = [r"\w+", r"[\w\s]+", r"\W"]

MAKERS = {"gpt2": gpt2, "llama3": lambda: llama3(LLAMA3), "o200k": lambda: llama3(O200K), "llama2": llama2,
          "metaspace": metaspace, "words": words, "qwen": qwen, "nfd": nfd, "bert": bert, "unigram": unigram,
          "unigram_bytes": unigram_bytes, "lines": lambda: by_patterns(*LINES), "patterns": lambda: by_patterns(*WORDS)}


def check(rows):
    for row in rows:
        t = Tokenizer.from_file(str(HERE / ("tokenizer_%s.json" % row["tokenizer"])))
        if t.encode(row["text"], add_special_tokens=False).ids != row["ids"]:
            sys.exit("%s: '%s'" % (row["tokenizer"], row["text"]))


def make(names, rows):
    rows = [row for row in rows if row["tokenizer"] not in names]
    for name in names:
        t = MAKERS[name]()
        save(name, t)
        rows += [{"tokenizer": name, "text": text, "ids": t.encode(text, add_special_tokens=False).ids} for text in cases()]
    return rows


if __name__ == "__main__":
    path = HERE / "tokenizer_cases.json"
    known = json.loads(path.read_text()) if path.exists() else []
    if sys.argv[1:] == ["--check"]:
        check(known)
    else:
        known = make(sys.argv[1:] or list(MAKERS), known)
        path.write_text("[\n" + ",\n".join(json.dumps(o) for o in known) + "\n]\n")
