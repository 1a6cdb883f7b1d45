//! `doctor`: everything that is wrong with a model or with the machine, and what to do about each.
//!
//! Sections look at one thing each and add findings and a word on what they checked: the files
//! (`src/checkpoint/examine`), then the texts, and, with findings of its own, the machine
//! (`src/machine`). The report goes to stdout as a table or as one JSON
//! object, progress to stderr. An error among the findings is exit code 1.

use super::flags::ModelFlag;
use super::{Failure, print};
use crate::checkpoint::examine::{
    Checked, Examination, Finding, Findings, Kind, Place, Progress, Severity, examine,
};
use crate::checkpoint::gguf::files::GgufFiles;
use crate::checkpoint::model_dirs;
use crate::convert::size;
use crate::engine::bandwidth::drive_bytes_s;
use crate::machine::{self, Looked, Measured, Sight};
use crate::text::{ChatTemplate, TextError, Tokenizer, sampling_advice, stop_ids};
use clap::Args;
use clap::builder::FalseyValueParser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Most places of equal findings that the table lists.
const PLACES_SHOWN: usize = 8;

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    #[command(flatten)]
    model: ModelFlag,
    /// Read every byte: checksums of a pack, values of other models
    #[arg(long, env = "MILLSTREAM_DEEP", value_parser = FalseyValueParser::new())]
    deep: bool,
    /// Don't read the drive for a second to see how fast it is
    #[arg(long, env = "MILLSTREAM_NO_MEASURE", value_parser = FalseyValueParser::new())]
    no_measure: bool,
    /// Print one JSON object
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// What the sections found.
#[derive(Serialize)]
struct Report {
    findings: Vec<Finding>,
    checked: Sections,
    machine: MachineReport,
}

/// What was found of the machine: it stands for itself, whatever the model.
#[derive(Serialize)]
struct MachineReport {
    findings: Vec<Finding>,
    checked: Looked,
}

/// What the sections looked at.
#[derive(Serialize)]
struct Sections {
    directory: PathBuf,
    deep: bool,
    model: Checked,
    text: Option<Text>,
}

/// What there is to speak to the model with.
#[derive(Clone, Copy, Serialize)]
struct Text {
    tokenizer: bool,
    chat_template: bool,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let directory = args.model.directory()?;
    let bar = Bar::new();
    let Examination { mut findings, checked: model } =
        examine(&directory, &model_dirs(), args.deep, &bar);
    bar.0.finish_and_clear();
    let text = directory.exists().then(|| text(&directory, model.vocabulary, &mut findings));
    let machine = machine(&directory, model.files, !args.no_measure);
    let checked = Sections { directory, deep: args.deep, model, text };
    let report = Report { findings: findings.into_sorted(), checked, machine };
    match args.json {
        true => {
            let text = serde_json::to_string_pretty(&report).map_err(Failure::failed)?;
            print(&format!("{text}\n"))?;
        }
        false => print(&report.table())?,
    }
    let of_machine = counts(&report.machine.findings)[0];
    match counts(&report.findings)[0] {
        0 if of_machine == 0 => Ok(()),
        0 => Err(Failure::Failed(format!(
            "{} found of the machine; the report says what to do",
            counted(of_machine, "error")
        ))),
        count => Err(Failure::Failed(format!(
            "{} found in {}; the report says what to do",
            counted(count, "error"),
            report.checked.directory.display()
        ))),
    }
}

/// The section of the machine, and of the drive under the model's directory.
fn machine(directory: &Path, files: usize, measure: bool) -> MachineReport {
    let weights = weight_files(directory);
    let mut sight = Sight::new(Path::new("/"));
    sight.files = files;
    sight.device = machine::device(directory);
    sight.measured = Measured {
        huge_share: machine::huge_share(),
        direct_offset_align_bytes: weights
            .first()
            .and_then(|file| machine::direct_offset_align_bytes(file)),
        drive_bytes_s: match measure {
            // As many at once as are ever measured: what the drive can give.
            true => drive_bytes_s(&weights, usize::MAX),
            false => Err("--no-measure".to_owned()),
        },
    };
    let (findings, checked) = machine::examine(&sight);
    MachineReport { findings: findings.into_sorted(), checked }
}

/// The files of weights in a directory, by name.
fn weight_files(directory: &Path) -> Vec<PathBuf> {
    if let Ok(Some(gguf)) = GgufFiles::find(directory, &model_dirs()) {
        return gguf.files.into_iter().map(|file| file.path).collect();
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_weights =
        |path: &PathBuf| path.is_file() && path.extension().is_some_and(|end| end == "safetensors");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_weights).collect();
    files.sort();
    files
}

/// The section of texts: the tokenizer and its vocabulary, the chat template, the makers' advice.
/// A model without them, or with broken ones, still runs by ids: nothing here is an error.
fn text(directory: &Path, vocabulary: Option<usize>, findings: &mut Findings) -> Text {
    let mut complain = |error: TextError| findings.add(text_finding(directory, &error));
    let mut found = Text { tokenizer: false, chat_template: false };
    let tokenizer = Tokenizer::open(directory).unwrap_or_else(|error| {
        found.tokenizer = true;
        complain(error);
        None
    });
    if let (Some(tokenizer), Some(vocabulary)) = (&tokenizer, vocabulary) {
        tokenizer.check_vocabulary(vocabulary).unwrap_or_else(&mut complain);
    }
    match ChatTemplate::open(directory) {
        Ok(template) => found.chat_template = template.is_some(),
        Err(error) => complain(error),
    }
    sampling_advice(directory).map(drop).unwrap_or_else(&mut complain);
    stop_ids(directory, tokenizer.as_ref()).map(drop).unwrap_or_else(&mut complain);
    found.tokenizer |= tokenizer.is_some();
    if !found.tokenizer {
        let finding = "missing: the model can be spoken to by token ids only";
        let remedy = "copy the tokenizer.json that came with these weights";
        findings.add(Finding::warning(Place::file("tokenizer.json"), finding, remedy));
    }
    found
}

/// A complaint about a text file, in its own words.
fn text_finding(directory: &Path, error: &TextError) -> Finding {
    let (TextError::Read { file, .. }
    | TextError::Gguf { file, .. }
    | TextError::TooLong { file, .. }
    | TextError::Content { file, .. }
    | TextError::Vocabulary { file, .. }
    | TextError::Refused { file, .. }
    | TextError::Template { file, .. }) = error;
    let text = error.to_string();
    let text = text.strip_prefix(&format!("{file}: ")).unwrap_or(&text);
    let (finding, remedy) =
        text.split_once("; ").unwrap_or((text, "copy the file that came with these weights"));
    let name = Path::new(file).strip_prefix(directory).unwrap_or(Path::new(file));
    Finding::warning(Place::file(name.display().to_string()), finding, remedy)
}

/// Errors, warnings, notes.
fn counts(findings: &[Finding]) -> [usize; 3] {
    [Severity::Error, Severity::Warning, Severity::Note]
        .map(|severity| findings.iter().filter(|finding| finding.severity == severity).count())
}

/// `1 error, 2 warnings, 0 notes`
fn tally(findings: &[Finding]) -> String {
    let [errors, warnings, notes] = counts(findings);
    format!(
        "{}, {}, {}",
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(notes, "note")
    )
}

impl MachineReport {
    fn summary(&self) -> String {
        let Looked { machine, drive, file_system, drive_read_gb_s, drive_not_measured, .. } =
            &self.checked;
        let speed = match (drive_read_gb_s, drive_not_measured) {
            (Some(gb_s), _) => format!("{gb_s:.2} GB/s"),
            (None, Some(reason)) => format!("speed not measured: {reason}"),
            (None, None) => "speed not measured".to_owned(),
        };
        let known = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
        let huge = self.checked.huge_share.map_or("unknown".to_owned(), |share| {
            format!("{:.0} % of a test arena", 100.0 * share)
        });
        format!(
            "machine: {}\nlooked at {machine}; huge pages: {huge}\ndrive: {} ({}), {speed}\n",
            tally(&self.findings),
            known(drive),
            known(file_system)
        )
    }
}

impl Report {
    /// The report for people: what was found of the model, then of the machine.
    fn table(&self) -> String {
        let mut text = listed(&self.findings) + &self.summary() + "\n";
        text += &listed(&self.machine.findings);
        text + &self.machine.summary()
    }

    fn summary(&self) -> String {
        let Sections { directory, deep, model, text } = &self.checked;
        let mut lines = format!("{}\n", tally(&self.findings));
        let kind = match model.kind {
            Some(Kind::Snapshot) => "Hugging Face snapshot",
            Some(Kind::Container) => "colibri container",
            Some(Kind::Gguf) => "model in GGUF",
            Some(Kind::Pack) => "Millstream pack",
            None => "no model",
        };
        let family = model.family.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let files = format!(
            "{} of {}, {}",
            counted(model.files, "file"),
            size(model.files_bytes),
            counted(model.tensors, "tensor")
        );
        let depth = match deep {
            true => format!("{} read", size(model.read_bytes)),
            false => "headers only, --deep reads every byte".to_owned(),
        };
        writeln!(lines, "checked {}: {kind}{family}, {files}, {depth}", directory.display())
            .expect("a string takes all");
        if let Some(Text { tokenizer, chat_template }) = text {
            let is = |there: &bool| if *there { "there" } else { "none" };
            writeln!(lines, "tokenizer: {}; chat template: {}", is(tokenizer), is(chat_template))
                .expect("a string takes all");
        }
        lines
    }
}

/// Findings for people, those of equal words together.
fn listed(findings: &[Finding]) -> String {
    let mut text = String::new();
    for (finding, places) in grouped(findings) {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        let mut line = |label: &str, words: &str| {
            writeln!(text, "{label:<9}{words}").expect("a string takes all");
        };
        line(severity, &finding.finding);
        for place in places.iter().take(PLACES_SHOWN).filter(|place| ***place != Place::EMPTY) {
            line("  in", &place.to_string());
        }
        if let Some(more @ 1..) = places.len().checked_sub(PLACES_SHOWN) {
            line("", &format!("and in {more} more, which --json lists"));
        }
        line("  to do", &finding.remedy);
        text.push('\n');
    }
    text
}

/// Findings that differ in their places alone, in the order of the first of each.
fn grouped(findings: &[Finding]) -> Vec<(&Finding, Vec<&Place>)> {
    let mut groups: Vec<(&Finding, Vec<&Place>)> = vec![];
    let mut known = HashMap::new();
    for finding in findings {
        let words = (finding.severity, &finding.finding, &finding.remedy);
        let group = *known.entry(words).or_insert_with(|| {
            groups.push((finding, vec![]));
            groups.len() - 1
        });
        groups[group].1.push(&finding.place);
    }
    groups
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Progress for people: a bar on a terminal, nothing elsewhere.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Bar {
        let style = ProgressStyle::with_template(
            "reading [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        );
        // It draws nothing where stderr is no terminal.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        Bar(bar.with_style(style.expect("a template of our own")))
    }
}

impl Progress for Bar {
    fn expect(&self, bytes: u64) {
        self.0.set_length(bytes);
    }

    fn read(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        let checked =
            Sections { directory: "/m".into(), deep: false, model: Checked::default(), text: None };
        let (_, looked) = machine::examine(&Sight::new(Path::new("/nowhere")));
        let machine = MachineReport { findings: vec![], checked: looked };
        Report { findings, checked, machine }
    }

    #[test]
    fn findings_of_equal_words_stand_together_and_long_lists_are_cut() {
        let missing = |layer| Finding::error(Place::layer(layer), "missing", "get it");
        let mut findings: Vec<Finding> = (0..10).map(missing).collect();
        findings.push(Finding::note(Place::default(), "by the way", "nothing"));
        let text = report(findings).table();
        assert_eq!(text.matches("missing").count(), 1, "{text}");
        assert_eq!(text.matches("  in ").count(), PLACES_SHOWN, "{text}");
        assert!(text.contains("and in 2 more") && text.contains("  to do  get it"), "{text}");
        assert!(text.contains("\n10 errors, 0 warnings, 1 note\n"), "{text}");
    }
}
