#!/usr/bin/env python3
"""Writes tests/data/gguf-tokenizers: a small SentencePiece vocabulary as GGUF files hold it, and ids to compare with.

    VENV/bin/pip install gguf==0.19.0 sentencepiece
    VENV/bin/python tests/gguf/make_tokenizer.py            # in the root of the repository

The vocabulary is trained as Llama's was (merges by score, bytes as fallback, no normalisation) on the licence of this
project. The ids are SentencePiece's own.
"""
import io
import json

import gguf
import sentencepiece

OUT = "tests/data/gguf-tokenizers/"
TEXTS = [
    "", " ", "a", "Hello", " Hello", "Hello  World", "  two  blanks  ", "The License is perpetual, worldwide.",
    "each Contributor hereby grants to You", "tabs\tand\nlines\r\n\n", "12345 67,89.0", "naïve café", "天気がいい",
    "Привет", "🙂 smile", "x+=1; // no", "UPPER lower MiXed", "a" * 40, "ababababab", "terms and conditions " * 3,
    "\u2581 the mark itself", "e\u0301 composed", "END OF TERMS",
]


def main():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(open("LICENSE", encoding="utf-8").read().splitlines()), model_writer=model,
        model_type="bpe", vocab_size=700, byte_fallback=True, split_digits=True, character_coverage=1.0,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        num_threads=1, minloglevel=2)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    out = gguf.GGUFWriter(OUT + "sentence_piece.gguf", "llama")
    kinds = []
    for i in range(pieces.vocab_size()):
        kinds.append(
            gguf.TokenType.UNKNOWN if pieces.is_unknown(i) else gguf.TokenType.CONTROL if pieces.is_control(i)
            else gguf.TokenType.BYTE if pieces.is_byte(i) else gguf.TokenType.NORMAL)
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list([pieces.id_to_piece(i) for i in range(pieces.vocab_size())])
    out.add_token_scores([pieces.get_score(i) for i in range(pieces.vocab_size())])
    out.add_token_types(kinds)
    out.add_bos_token_id(pieces.bos_id())
    out.add_eos_token_id(pieces.eos_id())
    out.add_unk_token_id(pieces.unk_id())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    cases = [{"text": text, "ids": pieces.encode(text)} for text in TEXTS]
    with open(OUT + "sentence_piece.json", "w", encoding="utf-8") as file:
        json.dump(cases, file, indent=0, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
