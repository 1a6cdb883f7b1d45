//! `chat`: a conversation in the terminal, or over a pipe.
//!
//! A line is what the user says; one that begins with a colon is a command ([`COMMANDS`]). Answers go to
//! stdout as they come, everything else to stderr. What was said (`conversation.rs`) becomes ids anew
//! for each turn, and the engine knows the pages of those that were fed before, so that only what is
//! new is read. Ctrl-C ends an answer and keeps the conversation (`interrupt.rs`).

use super::conversation::Conversation;
use super::flags::{EngineFlags, ModelFlag, held_bytes};
use super::interrupt::Interrupt;
use super::lines::Lines;
use super::run::stops;
use super::sampling::SamplingFlags;
use super::{Failure, print, say};
use crate::engine::{Engine, EngineError, Event, Finish, Model, Request, Statistics};
use crate::sampler::Sampling;
use crate::text::{ChatTemplate, Message, TextStream, Tokenizer, sampling_advice};
use clap::Args;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often a Ctrl-C is looked for while no token comes.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Arguments of `chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelFlag,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
    /// Tokens of an answer at most; `:more` goes on
    #[arg(
        long,
        env = "MILLSTREAM_MAX_TOKENS",
        allow_negative_numbers = true,
        default_value = "512",
        value_name = "N"
    )]
    max_tokens: usize,
    /// What the chat template says to the model before the conversation
    #[arg(long, env = "MILLSTREAM_SYSTEM", value_name = "TEXT")]
    system: Option<String>,
}

/// What a line that begins with a colon does.
const COMMANDS: [(&str, &str); 7] = [
    (":help", "this list"),
    (":more", "go on with an answer that was cut off"),
    (":reset", "forget the conversation"),
    (":save FILE", "keep the conversation in a file"),
    (":load FILE", "go on with a conversation from a file"),
    (":stats", "figures of the last answer"),
    (":quit", "end, as Ctrl-D does"),
];

/// An answer that could go on.
struct Last {
    prompt_ids: Vec<u32>,
    /// Without a stop token.
    answer_ids: Vec<u32>,
    finish: Finish,
    statistics: Statistics,
}

struct Chat<'a> {
    engine: &'a Engine,
    tokenizer: &'a Tokenizer,
    template: Option<ChatTemplate>,
    system: Option<&'a str>,
    sampling: Sampling,
    stop_ids: Vec<u32>,
    max_tokens: usize,
    conversation: Conversation,
    last: Option<Last>,
    interrupt: Arc<Interrupt>,
}

/// Runs the command.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    let directory = args.model.directory()?;
    let mut options = args.engine.tuned_options(&directory)?.serving();
    options.learn = args.engine.use_file(&args.model, &directory);
    let model = Model::open_with(&directory, args.engine.checks())?;
    let sampling = args.sampling.sampling(&sampling_advice(&directory)?)?;
    let Some(tokenizer) = Tokenizer::open(&directory)? else {
        return Err(Failure::Usage(format!(
            "{} has no tokenizer.json, so it can't read text; copy the one that belongs to these \
             weights",
            directory.display()
        )));
    };
    tokenizer.check_vocabulary(model.spec.vocabulary)?;
    let template = match args.model.model {
        Some(_) => ChatTemplate::open(&directory)?,
        None => None,
    };
    if template.is_none() && args.system.is_some() {
        return Err(Failure::Usage(
            "--system: this model has no chat template to put it in; leave it out".into(),
        ));
    }
    let stop_ids = stops(&model, &directory, Some(&tokenizer))?;
    options.held_bytes = held_bytes();
    let interrupt = Interrupt::listen()?;
    let engine = Engine::start(model, &options)?;
    say(&engine.start_line);
    for warning in &engine.warnings {
        say(&format!("warning: {warning}"));
    }
    if template.is_none() {
        say("this model has no chat template: it continues the text of the conversation");
    }
    let mut chat = Chat {
        engine: &engine,
        tokenizer: &tokenizer,
        template,
        system: args.system.as_deref(),
        sampling,
        stop_ids,
        max_tokens: args.max_tokens,
        conversation: Conversation::new(args.system.as_deref()),
        last: None,
        interrupt,
    };
    let mut lines = Lines::open(crate::learn::state_file("chat-history"))?;
    while let Some(line) = lines.next()? {
        match chat.take(line.trim_end()) {
            Ok(true) => {}
            Ok(false) => break,
            // What went wrong with one line doesn't end the conversation.
            Err(Failure::Usage(message) | Failure::Failed(message)) => {
                say(&format!("error: {message}"));
            }
        }
    }
    Ok(())
}

impl Chat<'_> {
    /// Takes a line; false when it was the last one.
    fn take(&mut self, line: &str) -> Result<bool, Failure> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (command, rest.trim()) {
            ("", "") => {}
            (":quit", "") => return Ok(false),
            (":help", "") => {
                COMMANDS.iter().for_each(|(name, what)| say(&format!("{name:<11} {what}")))
            }
            (":reset", "") => {
                self.conversation = Conversation::new(self.system);
                self.last = None;
            }
            (":stats", "") => match &self.last {
                Some(last) => say(&last.statistics.to_string()),
                None => say("there is no answer yet"),
            },
            (":more", "") => self.go_on()?,
            (":save", file) if !file.is_empty() => self.conversation.save(Path::new(file))?,
            (":load", file) if !file.is_empty() => {
                self.conversation = Conversation::load(Path::new(file))?;
                self.last = None;
            }
            _ if line.starts_with(':') => {
                say(&format!("error: {line}: no such command; :help lists them"));
            }
            _ => self.answer(line)?,
        }
        Ok(true)
    }

    /// Answers what the user says; if that can't be, it wasn't said.
    fn answer(&mut self, line: &str) -> Result<(), Failure> {
        let before = self.conversation.messages.len();
        self.conversation.messages.push(Message::new("user", line));
        let ids = self.conversation.ids(self.tokenizer, self.template.as_ref());
        match ids.and_then(|ids| self.generate(ids, vec![])) {
            Ok(text) => {
                self.conversation.messages.push(Message::new("assistant", &text));
                Ok(())
            }
            Err(failure) => {
                self.conversation.messages.truncate(before);
                Err(failure)
            }
        }
    }

    /// Goes on with the last answer.
    fn go_on(&mut self) -> Result<(), Failure> {
        let Some(last) = &self.last else {
            say("there is no answer to go on with");
            return Ok(());
        };
        if last.finish == Finish::Stop {
            say("the answer is complete");
            return Ok(());
        }
        let (prompt_ids, answer_ids) = (last.prompt_ids.clone(), last.answer_ids.clone());
        let text = self.generate(prompt_ids, answer_ids)?;
        let said = self.conversation.messages.last_mut().expect("the answer's message");
        said.content = text;
        Ok(())
    }

    /// Generates after a prompt and the part of an answer that is there, shows what is new as it comes, and
    /// gives the text of the whole answer.
    fn generate(&mut self, prompt_ids: Vec<u32>, begun: Vec<u32>) -> Result<String, Failure> {
        let request = Request {
            sampling: self.sampling,
            stop_ids: self.stop_ids.clone(),
            ..Request::greedy([&prompt_ids[..], &begun].concat(), self.max_tokens)
        };
        let generation = self.engine.begin(&request)?;
        self.interrupt.begin();
        let answer = show(&generation, self.tokenizer, &self.interrupt);
        self.interrupt.end();
        let answer = answer?;
        match answer.finish {
            Finish::ContextFull => {
                say("the context is full: :reset begins anew, --context allows more")
            }
            Finish::Length => say("(cut off: :more goes on)"),
            Finish::Cancelled => say("(stopped: :more goes on)"),
            Finish::Stop => {}
        }
        let mut answer_ids = begun;
        answer_ids.extend(&answer.answer_ids);
        if answer.finish == Finish::Stop {
            answer_ids.pop();
        }
        let text = self.tokenizer.decode(&answer_ids, true)?;
        let (finish, statistics) = (answer.finish, answer.statistics);
        self.last = Some(Last { prompt_ids, answer_ids, finish, statistics });
        Ok(text)
    }
}

/// Shows an answer to its end, which a Ctrl-C brings about early.
fn show(
    generation: &crate::engine::Generation,
    tokenizer: &Tokenizer,
    interrupt: &Interrupt,
) -> Result<crate::engine::Answer, Failure> {
    let mut stream = TextStream::new(tokenizer, true);
    let outcome = loop {
        if interrupt.is_asked() {
            generation.cancel();
        }
        match generation.next_within(LOOK_PERIOD) {
            None => {}
            Some(Event::Token(token)) => print(&stream.push(token.id)?)?,
            Some(Event::Done(outcome)) => break outcome,
        }
    };
    print(&stream.finish()?)?;
    print("\n")?;
    outcome.map_err(|error: EngineError| Failure::from(error))
}
