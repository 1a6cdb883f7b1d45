//! Lines that a person types or a program sends.
//!
//! On a terminal a line editor with a history that is kept between sessions; else plain lines.

use super::Failure;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

/// What stands before a line on a terminal.
const PROMPT: &str = "> ";

/// Where lines come from.
pub enum Lines {
    /// A terminal, and where its history is kept if anywhere.
    Terminal(Box<DefaultEditor>, Option<PathBuf>),
    /// Anything else.
    Plain,
}

impl Lines {
    /// Of stdin. `history` is made if it isn't there; without one, lines are forgotten.
    ///
    /// # Errors
    /// When the terminal can't be used.
    pub fn open(history: Option<PathBuf>) -> Result<Lines, Failure> {
        if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
            return Ok(Lines::Plain);
        }
        let mut editor = DefaultEditor::new().map_err(Failure::failed)?;
        if let Some(file) = &history {
            // The first session has none.
            let _ = editor.load_history(file);
        }
        Ok(Lines::Terminal(Box::new(editor), history))
    }

    /// The next line; none at the end. Ctrl-C gives the line up and begins another.
    ///
    /// # Errors
    /// When stdin can't be read, or isn't UTF-8.
    pub fn next(&mut self) -> Result<Option<String>, Failure> {
        match self {
            Lines::Terminal(editor, _) => loop {
                match editor.readline(PROMPT) {
                    Ok(line) => {
                        let _ = editor.add_history_entry(&line);
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Interrupted) => super::say("(:quit or Ctrl-D ends)"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => return Err(Failure::failed(error)),
                }
            },
            Lines::Plain => {
                let mut line = String::new();
                let bytes = std::io::stdin().lock().read_line(&mut line)?;
                let line = line.trim_end_matches(['\n', '\r']).to_owned();
                Ok((bytes > 0).then_some(line))
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Lines::Terminal(editor, Some(file)) = self {
            let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
            let saved = made.map_err(ReadlineError::Io).and_then(|()| editor.save_history(file));
            if let Err(error) = saved {
                super::say(&format!(
                    "warning: the history isn't kept: {}: {error}",
                    file.display()
                ));
            }
        }
    }
}
