"""Makes tokenizers.json (pip install tokenizers transformers): tokenizer.json files of every kind of model, and GPT-2's pair of files, with what the
reference library makes of some texts. Built from words of our own, so small."""

import base64
import json
import pathlib
import struct

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
WORDS = ("the players play a play on the stage, and the stage plays the players; don't ask why nobody's paying 2024 coins! "
         "Über naïve Ångström 日本 漢字 ﬁne ½ résumé").split()
CORPUS = [" ".join(WORDS[(i * k) % len(WORDS)] for i in range(k, k + 9)) for k in range(1, 160)]
TEXTS = ["the players play", "  two  spaces ", "", " ", "Über naïve 日本 🎉 x", "stage\nand\tstage\r\n", "pays2024!", "\u00a0x\u0301 \ufb01ne \u00bd\u200b\ufeff", "don't they're he's I've it's , . ! ? '",
         "THE Players\x00\x07\x85\u2003end", "a" * 120 + " the", "ａｂｃ ㌔ ①\u0307 İstanbul ß", "한국어 각\u1161", "<s> [MASK] the</s> [SEP]", "é e\u0301 ñ\u0303 \u0915\u094d\u0937", "\U0001d400 \ue000 \u00ad soft", "👩‍👩‍👧 the 🇯🇵"]


def charsmap():
    """A precompiled_charsmap of our own: a double array over a few replacements."""
    entries = {"\ufb01": "fi", "\u00bd": "1/2", "\uff41": "a", "\uff42": "b", "\uff43": "c", "\u00a0": " ", "\u2460": "1", "e\u0301": "\u00e9", "\u3314": "\u30ad\u30ed", "\u200b": "", "\t": " ", "\n": " "}
    strings, places = b"", {}
    for key, value in entries.items():
        places[key.encode()] = len(strings)
        strings += value.encode() + b"\0"
    trie = {}
    for key, place in places.items():
        node = trie
        for byte in key:
            node = node.setdefault(byte, {})
        node[None] = place
    size = 1 << 12
    units, used = [0] * size, [False] * size
    used[0] = True

    def place_node(node, index, label):
        children = [0 if key is None else key for key in node]
        offset = next(o for o in range(1, size) if (index ^ o) and all(0 < (index ^ o ^ c) < size and not used[index ^ o ^ c] for c in children))
        base = index ^ offset
        for child in children:
            used[base ^ child] = True
        units[index] = offset << 10 | (1 << 8 if None in node else 0) | label
        for key, child in node.items():
            if key is None:
                units[base] = 1 << 31 | child
            else:
                place_node(child, base ^ key, key)
    place_node(trie, 0, 0)
    return base64.b64encode(struct.pack("<I", 4 * size) + struct.pack(f"<{size}I", *units) + strings).decode()


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=160, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]")))
    return tokenizer


def cased_wordpiece():
    tokenizer = wordpiece()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=True, clean_text=True, handle_chinese_chars=False)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


def unigram(byte_fallback):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else [])
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=120 + len(special), special_tokens=special, unk_token="<unk>", show_progress=False))
    document = json.loads(tokenizer.to_str())
    document["model"]["byte_fallback"] = byte_fallback
    if byte_fallback:
        document["added_tokens"] = document["added_tokens"][:3]
        document["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]}
    return Tokenizer.from_str(json.dumps(document))


def precompiled():
    document = json.loads(unigram(False).to_str())
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap()}, {"type": "StripAccents"}]}
    return Tokenizer.from_str(json.dumps(document))


def wordlevel():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=40, special_tokens=["<unk>"], show_progress=False))
    return tokenizer


def pair():
    """vocab.json and merges.txt as GPT-2 has them, read by transformers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    return json.dumps(model["vocab"], ensure_ascii=False), "#version: 0.2\n" + "\n".join(" ".join(merge) for merge in model["merges"]) + "\n"


def main():
    result = {"tokenizers": {}, "pairs": {}}
    for name, tokenizer in {"wordpiece": wordpiece(), "cased wordpiece": cased_wordpiece(), "unigram": unigram(False), "unigram bytes": unigram(True),
                            "precompiled": precompiled(), "wordlevel": wordlevel()}.items():
        cases = []
        for text in TEXTS:
            encoding = tokenizer.encode(text)
            cases.append({"text": text, "ids": encoding.ids, "decoded": tokenizer.decode(encoding.ids, skip_special_tokens=False)})
        result["tokenizers"][name] = {"file": json.loads(tokenizer.to_str()), "cases": cases}
    from transformers import GPT2Tokenizer, Qwen2Tokenizer
    import tempfile
    vocab, merges = pair()
    for name, cls in (("GPT2Tokenizer", GPT2Tokenizer), ("Qwen2Tokenizer", Qwen2Tokenizer)):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "vocab.json").write_text(vocab)
            (pathlib.Path(folder) / "merges.txt").write_text(merges)
            config = {"tokenizer_class": name, "unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
            (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
            tokenizer = cls.from_pretrained(folder)
            cases = [{"text": text, "ids": tokenizer.encode(text)} for text in TEXTS + ["a<|endoftext|>b"]]
        result["pairs"][name] = {"config": config, "cases": cases}
    result["pair"] = {"vocab.json": vocab, "merges.txt": merges}
    (HERE / "tokenizers.json").write_text(json.dumps(result, ensure_ascii=False) + "\n")


main()
