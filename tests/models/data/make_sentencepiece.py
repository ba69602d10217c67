"""Makes bpe.model, unigram.model and sentencepiece_cases.json (pip install sentencepiece): two tiny SentencePiece models
over a text of our own, and what the library's own Python binding makes of some texts."""

import json
import pathlib

import sentencepiece

HERE = pathlib.Path(__file__).parent
WORDS = "the players play a play on the stage and the stage plays the players while nobody pays 2024 coins".split()
SENTENCES = [" ".join(WORDS[i % len(WORDS)] for i in range(first, first + 9)) for first in range(200)]
TEXTS = ["the players play", "  two  spaces ", "", " ", "Über naïve 日本 🎉", "stage\nand\tstage", "pays2024", "\u00a0x\u0301 \ufb01",
         "<s>the</s>", "a" * 40]
result = {}
for kind, options in (("bpe", {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
                               "vocab_size": 330}),
                      ("unigram", {"vocab_size": 37, "normalization_rule_name": "identity"})):
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES), model_prefix=str(HERE / kind), model_type=kind,
                                             minloglevel=2, num_threads=1, **options)
    (HERE / f"{kind}.vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{kind}.model"))
    result[kind] = [{"text": text, "ids": processor.encode(text)} for text in TEXTS if "<s>" not in text]
(HERE / "sentencepiece_cases.json").write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n")
