//! A directory with everything that a bench recorded, for HdrHistogram's own tools and for people.
//!
//! Per series `NAME.hlog` (an interval log, one interval a repetition) and `NAME.hgrm` (percentiles of all
//! of it); `plan.toml`; `percentiles.svg`, `stages.svg`, `timeline.svg`. Files that are there already are
//! replaced; nothing else in the directory is touched.

use super::pictures;
use super::speed::{SpeedRow, Stretch};
use millstream_stages::gauge::log::{Interval, LogHead, hgrm, hlog};
use millstream_stages::gauge::{Event, LatencyHistogram};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What goes into the directory.
pub struct Recorded<'a> {
    /// Lines for the top of every log: where the figures come from.
    pub comments: &'a [String],
    /// When the bench began.
    pub start: SystemTime,
    /// By repetition.
    pub stretches: &'a [Stretch],
    /// The figures.
    pub rows: &'a [SpeedRow],
    /// Of one token.
    pub events: &'a [Event],
    /// The plan, as `--topology` takes it.
    pub plan_toml: &'a str,
}

/// A file can't be written.
#[derive(Debug, thiserror::Error)]
#[error("--histograms: can't write {}: {source}; name a directory that can be written", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

impl Recorded<'_> {
    /// Writes all of it; the names of the files.
    ///
    /// # Errors
    /// When the directory or a file can't be made.
    pub fn write(&self, directory: &Path) -> Result<Vec<String>, WriteError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| WriteError { path, source }
        };
        fs::create_dir_all(directory).map_err(failed(directory))?;
        let mut names = vec![];
        let mut write = |name: String, bytes: &[u8]| {
            let path = directory.join(&name);
            fs::write(&path, bytes).map_err(failed(&path))?;
            names.push(name);
            Ok(())
        };
        let mut all = vec![];
        for (name, intervals, total) in self.by_series() {
            let head = LogHead { comments: self.comments, start: self.start, series: &name };
            let log = hlog(&head, &intervals).map_err(failed(&directory.join(&name)))?;
            write(format!("{name}.hlog"), &log)?;
            write(format!("{name}.hgrm"), hgrm(&total).as_bytes())?;
            all.push((name, total));
        }
        write("plan.toml".to_owned(), self.plan_toml.as_bytes())?;
        write("percentiles.svg".to_owned(), pictures::percentiles(&all).as_bytes())?;
        write("stages.svg".to_owned(), pictures::stages(self.rows).as_bytes())?;
        write("timeline.svg".to_owned(), pictures::timeline(self.events).as_bytes())?;
        Ok(names)
    }

    /// Name, intervals and all together of every series.
    fn by_series(&self) -> Vec<(String, Vec<Interval>, LatencyHistogram)> {
        let Some(first) = self.stretches.first() else { return vec![] };
        let of = |index: usize| {
            let mut total = LatencyHistogram::default();
            let intervals: Vec<Interval> = self
                .stretches
                .iter()
                .map(|stretch| {
                    let histogram = stretch.series[index].1.clone();
                    total.add(&histogram);
                    Interval { begin: stretch.begin, length: stretch.length, histogram }
                })
                .collect();
            (first.series[index].0.to_string(), intervals, total)
        };
        (0..first.series.len()).map(of).collect()
    }
}
