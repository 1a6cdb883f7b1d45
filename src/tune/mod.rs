//! Tuning: settings that make a model faster on this machine, found by running it.
//!
//! | file | what it is |
//! |---|---|
//! | `knobs.rs` | the table of what may be changed, and the values that are tried |
//! | `settings.rs` | chosen values, and what they mean for the engine |
//! | `decide.rs` | the rule by which a change is taken: a pure function over samples |
//! | `search.rs` | one change after the other, A B B A, and a last check against the default |
//! | `trial.rs` | one run of the engine with some settings |
//! | `profile.rs` | the file that keeps the outcome for machine, model and version |
//!
//! A change never alters an answer: every run feeds the same ids, and a candidate whose choices differ
//! in one token is refused.

pub mod decide;
mod knobs;
mod profile;
mod search;
mod settings;
mod trial;

pub use decide::{Judgement, Run, Verdict, judge};
pub use knobs::{Goal, KNOBS, Knob, Room};
pub use profile::{Profile, ProfileError, ProfileFile};
pub use search::{Outcome, Search, Step, StepEnd, Trial};
pub use settings::{Settings, SettingsError};
pub use trial::EngineTrial;
