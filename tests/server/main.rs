//! The server over raw HTTP, in one binary: every shape, company, vanished and hostile clients.

mod client;
mod company;
mod gate;
mod hostile;
mod messages;
mod openai;
mod setup;
mod stopping;
mod tools;
mod watching;
