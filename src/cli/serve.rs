//! `serve`: a model over HTTP, for the clients of OpenAI's and Anthropic's APIs.
//!
//! The engine starts as `run` would start it, with places for several sequences; the server
//! (`src/server/`) runs until a signal. What runs and where goes to stderr.

use super::flags::{EngineFlags, ModelFlag, held_bytes};
use super::run::stops;
use super::{Failure, say};
use crate::embedded;
use crate::engine::{Engine, Model, Options};
use crate::server::{
    Drained, Numbers, Served, Server, ServerError, ServerLimits, ServerOptions, seconds_now,
};
use crate::text::{ChatTemplate, Tokenizer, sampling_advice};
use clap::Args;
use clap::builder::FalseyValueParser;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelFlag,
    #[command(flatten)]
    engine: EngineFlags,
    /// Address to listen on; another than this machine's own needs --api-key or --no-auth
    #[arg(long, env = "MILLSTREAM_HOST", default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "MILLSTREAM_PORT", default_value = "8080", value_name = "N")]
    port: u16,
    /// Key that callers must send (Authorization: Bearer KEY, or x-api-key: KEY); the variable keeps
    /// it out of the list of processes
    #[arg(long, env = "MILLSTREAM_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Let everybody in who can reach the address
    #[arg(long, env = "MILLSTREAM_NO_AUTH", value_parser = FalseyValueParser::new())]
    #[arg(conflicts_with = "api_key")]
    no_auth: bool,
    /// Other names that callers may call the model by: gpt-4o,claude-sonnet
    #[arg(long, env = "MILLSTREAM_ALIAS", value_delimiter = ',', value_name = "NAMES")]
    alias: Vec<String>,
    /// Host names, besides localhost, that requests may name
    #[arg(long, env = "MILLSTREAM_ALLOW_HOST", value_delimiter = ',', value_name = "NAMES")]
    allow_host: Vec<String>,
    /// Origins of web pages that may call this server: https://chat.example
    #[arg(long, env = "MILLSTREAM_ALLOW_ORIGIN", value_delimiter = ',', value_name = "ORIGINS")]
    allow_origin: Vec<String>,
    /// Answers made at once
    #[arg(long, env = "MILLSTREAM_SEQUENCES", default_value = "8", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    sequences: u32,
    /// Answers that wait for their turn; more are told to come back later (429)
    #[arg(long, env = "MILLSTREAM_MAX_QUEUE", default_value = "64", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    max_queue: u32,
    /// Seconds that an answer may take, waiting included; 0 sets no bound
    #[arg(long, env = "MILLSTREAM_TIMEOUT_SECONDS", default_value = "3600", value_name = "N")]
    timeout_seconds: u32,
    /// Seconds that answers under way have to end after SIGTERM or Ctrl-C; a second one ends at once
    #[arg(long, env = "MILLSTREAM_DRAIN_SECONDS", default_value = "30", value_name = "N")]
    drain_seconds: u32,
    /// MiB of a request's body at most
    #[arg(long, env = "MILLSTREAM_MAX_BODY_MIB", default_value = "16", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_body_mib: u32,
}

/// Runs the command.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let options = server_options(args)?;
    let directory = args.model.directory()?;
    let served = served(args, &directory)?;
    say(&served.engine.start_line);
    for warning in &served.engine.warnings {
        say(&format!("warning: {warning}"));
    }
    let names = served.names.join(", ");
    let server = Server::start(served, &options)?;
    say(&format!("serving {names} at http://{}/v1", server.address()));
    let drain = Duration::from_secs(u64::from(args.drain_seconds));
    let outcome = server.run_until_signal(drain, || {
        say(&format!(
            "ending: answers under way have {} s; a second signal ends at once",
            args.drain_seconds
        ));
    })?;
    if outcome == Drained::Cut {
        say("warning: answers under way were cut off");
    }
    Ok(())
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        Failure::failed(error)
    }
}

/// Where and to whom; refuses to be open to a net without a word.
fn server_options(args: &ServeArgs) -> Result<ServerOptions, Failure> {
    if !args.host.is_loopback() && args.api_key.is_none() && !args.no_auth {
        return Err(Failure::Usage(format!(
            "--host {}: others can reach this address; give --api-key KEY (or MILLSTREAM_API_KEY), \
             or --no-auth if everybody may use the model",
            args.host
        )));
    }
    if args.api_key.as_deref().is_some_and(str::is_empty) {
        return Err(Failure::Usage("--api-key is empty; give a key, or --no-auth".into()));
    }
    let limits = ServerLimits {
        body_bytes_max: (args.max_body_mib as usize) << 20,
        answer_time: match args.timeout_seconds {
            0 => None,
            seconds => Some(Duration::from_secs(u64::from(seconds))),
        },
        queue_max: args.max_queue as usize,
        ..ServerLimits::default()
    };
    Ok(ServerOptions {
        address: SocketAddr::new(args.host, args.port),
        api_key: args.api_key.clone(),
        allow_hosts: args.allow_host.clone(),
        allow_origins: args.allow_origin.clone(),
        limits,
    })
}

/// Starts the engine and gathers what the server needs of the model.
fn served(args: &ServeArgs, directory: &Path) -> Result<Served, Failure> {
    let mut options: Options = args.engine.tuned_options(directory)?.serving();
    options.sequences_max = args.sequences as usize;
    options.queue_max = args.max_queue as usize;
    options.logits_rows_max = options.logits_rows_max.max(options.sequences_max);
    options.learn = args.engine.use_file(&args.model, directory);
    let model = Model::open_with(directory, args.engine.checks())?;
    let Some(tokenizer) = Tokenizer::open(directory)? else {
        return Err(Failure::Usage(format!(
            "{} has no tokenizer.json, so it can't be served; copy the one that belongs to these weights",
            directory.display()
        )));
    };
    tokenizer.check_vocabulary(model.spec.vocabulary)?;
    let embedded = args.model.model.is_none();
    // The embedded model has read books and no conversations: it continues what is said.
    let template = match embedded {
        true => Some(ChatTemplate::paragraphs()),
        false => ChatTemplate::open(directory)?,
    };
    let stop_ids = stops(&model, directory, Some(&tokenizer))?;
    let mut names = vec![match embedded {
        true => embedded::NAME.to_owned(),
        false => own_name(directory),
    }];
    names.extend(args.alias.iter().filter(|alias| !alias.is_empty()).cloned());
    options.held_bytes = held_bytes();
    Ok(Served {
        engine: Engine::start(model, &options)?,
        tokenizer,
        template,
        stop_ids,
        advice: sampling_advice(directory)?,
        names,
        created: seconds_now(),
        numbers: Numbers::default(),
    })
}

/// The name of the model's directory.
fn own_name(directory: &Path) -> String {
    let whole = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    whole.file_name().map_or("model".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn options(words: &[&str]) -> Result<ServerOptions, Failure> {
        use clap::Parser;
        let words = std::iter::once("serve").chain(words.iter().copied());
        server_options(&Line::try_parse_from(words).expect("good words").args)
    }

    #[test]
    fn address_of_the_net_needs_a_key_or_a_word() {
        assert!(options(&[]).unwrap().address.ip().is_loopback());
        for open in [&["--host", "0.0.0.0"][..], &["--host", "::"]] {
            assert!(matches!(options(open), Err(Failure::Usage(_))), "{open:?}");
        }
        assert!(options(&["--host", "0.0.0.0", "--no-auth"]).is_ok());
        assert!(options(&["--host", "0.0.0.0", "--api-key", "k"]).is_ok());
        assert!(options(&["--api-key", ""]).is_err());
    }
}
