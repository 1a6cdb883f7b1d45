//! Models in GGUF: hostile headers, tokenizers, configurations, and whole models held against
//! references.

mod hostile;
mod tokenizer;
mod writer;
