//! What all requests share: the model, the bounds, the gate, the places and the counters.
//!
//! Made once, never changed but for the counters and the word that the server is ending.

use super::admission::Admission;
use super::gate::Gate;
use super::limits::ServerLimits;
use super::meter::Meter;
use super::served::Served;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Shared by all requests.
pub struct ServerState {
    /// The model.
    pub served: Arc<Served>,
    /// Bounds of requests.
    pub limits: ServerLimits,
    /// Who is let in.
    pub gate: Gate,
    /// How many may ask at once.
    pub admission: Admission,
    /// What is counted.
    pub meter: Arc<Meter>,
    /// No new questions are taken.
    pub ending: AtomicBool,
}
