//! Models in GGUF: hostile headers, tokenizers, configurations, and whole models held against
//! references.

mod command;
mod config;
mod hostile;
mod models;
mod tokenizer;
mod writer;
